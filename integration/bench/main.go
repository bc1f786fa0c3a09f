// Command bench measures the farm on a real Consul on loopback and compares it with its goals. `make bench` runs all
// benchmarks except huge; `make bench BENCH=name/part` runs the parts of one whose names contain the text after the
// slash. A reference is measured in the same run as the result.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/app"
)

type benchmark struct {
	name  string
	limit time.Duration
	run   func(ctx context.Context, b *bench) error
}

// onlyNamed takes too long for a run of all benchmarks.
const onlyNamed = "huge"

var benchmarks = []benchmark{
	{"placement", 8 * time.Minute, placementBench},
	{"failover", 4 * time.Minute, failoverBench},
	{"failover-large", 12 * time.Minute, failoverLargeBench},
	{"full", 5 * time.Minute, fullBench},
	{"tight", 5 * time.Minute, tightBench},
	{"change", 4 * time.Minute, changeBench},
	{"large", 4 * time.Minute, largeBench},
	{"unit", 8 * time.Minute, unitBench},
	{"idle", 3 * time.Minute, idleBench},
	{"recovery", 2 * time.Minute, recoveryBench},
	{"rollout", 6 * time.Minute, rolloutBench},
	{"storm", 2 * time.Minute, stormBench},
	{"push", 8 * time.Minute, pushBench},
	{"preparer", 5 * time.Minute, preparerBench},
	{"election", 8 * time.Minute, electionBench},
	{"huge", 30 * time.Minute, hugeBench},
}

// options are the flags of a run. Goals are for the default sizes.
type options struct {
	nodes, manyNodes                int
	onePods, mediumRCs, smallRCs    int
	repeat                          int
	failovers, changes              int
	idleRCs, idlePods               int
	idleFor                         time.Duration
	lostNodes, lostRCs              int
	stormRCs                        int
	largeRCs, fullNodes, tightRCs   int
	largeServices                   int
	unitRevisions, unitPods         int
	unitRCs                         int
	unitFor                         time.Duration
	hugeUnitCount, hugeNodeCount    int
	rolloutPods, rollouts           int
	logs, profiles, json, farm, run string
	more                            bool
	docs                            string
}

func (o *options) flags() {
	flag.StringVar(&o.run, "run", "", "one benchmark, as `NAME` or NAME/PART; all but huge when empty")
	flag.IntVar(&o.nodes, "nodes", 1000, "simulated nodes")
	flag.IntVar(&o.manyNodes, "many-nodes", 5000, "placement: nodes of the large cluster")
	flag.IntVar(&o.onePods, "one-pods", 5000, "placement, large: replicas of the one controller")
	flag.IntVar(&o.mediumRCs, "medium-rcs", 200, "placement: controllers of 25 replicas")
	flag.IntVar(&o.smallRCs, "small-rcs", 1000, "placement: controllers of 3 replicas")
	flag.IntVar(&o.repeat, "repeat", 3, "placement: runs of each part; the one with the median time counts")
	flag.IntVar(&o.failovers, "failovers", 10, "failover: runs of each kind")
	flag.IntVar(&o.changes, "changes", 100, "change: changes of each size")
	flag.IntVar(&o.idleRCs, "idle-rcs", 2000, "idle: controllers")
	flag.IntVar(&o.idlePods, "idle-pods", 10, "idle: replicas of each controller")
	flag.DurationVar(&o.idleFor, "idle-for", 40*time.Second, "idle: how long to look; sweeps are up to 38 s apart")
	flag.IntVar(&o.lostNodes, "lost-nodes", 200, "recovery: nodes that are lost")
	flag.IntVar(&o.lostRCs, "lost-rcs", 1000, "recovery: controllers of 10 replicas")
	flag.IntVar(&o.stormRCs, "storm-rcs", 500, "storm: controllers of 10 replicas")
	flag.IntVar(&o.largeRCs, "large-rcs", 10_000, "failover-large: controllers of 3 replicas")
	flag.IntVar(&o.largeServices, "large-services", 2000, "failover-large: services whose two revisions are among them")
	flag.IntVar(&o.rolloutPods, "rollout-pods", 1000, "rollout: replicas of the large service")
	flag.IntVar(&o.rollouts, "rollouts", 50, "rollout: services of 20 replicas that are rolled out at once")
	flag.IntVar(&o.fullNodes, "full-nodes", 10_000, "full: nodes")
	flag.IntVar(&o.tightRCs, "tight-rcs", 100, "tight: controllers of 4 replicas of each size")
	flag.IntVar(&o.unitRevisions, "unit-revisions", 3, "unit: revisions of the large service")
	flag.IntVar(&o.unitPods, "unit-pods", 5000, "unit: replicas of each of its revisions")
	flag.IntVar(&o.unitRCs, "unit-rcs", 10_000, "unit: controllers of one replica beside it")
	flag.DurationVar(&o.unitFor, "unit-for", 20*time.Second, "unit: how long only the large service changes")
	flag.IntVar(&o.hugeUnitCount, "huge-units", 20_000, "huge: controllers and services, of 5 replicas each")
	flag.IntVar(&o.hugeNodeCount, "huge-nodes", 10_000, "huge: nodes")
	flag.StringVar(&o.logs, "logs", "", "`DIRECTORY` for the farms' logs; empty: they are dropped")
	flag.StringVar(&o.profiles, "profiles", "",
		"`DIRECTORY` for CPU profiles of the parts whose farms run in this program")
	flag.StringVar(&o.json, "json", "bin/bench.json", "`FILE` for the results, below the repository")
	flag.BoolVar(&o.more, "more", false,
		"add this run to the earlier ones in the file with the results, from which the median counts")
	flag.StringVar(&o.docs, "docs", "",
		"measure nothing, write the table of this `PAGE` from the file with the results")
	flag.StringVar(&o.farm, "farm", "bin/farm", "the farm `PROGRAM`, below the repository")
	flag.Parse()
}

type bench struct {
	options
	root   string
	report report
	part   string // text that the name of a part must contain; empty: all parts run
}

func (b *bench) wants(part string) bool { return strings.Contains(part, b.part) }

func main() {
	defer runtime.KeepAlive(app.RoomyHeap()) // as in a farm's own program
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench failed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	b := &bench{}
	b.flags()
	var err error
	if b.root, err = cluster.Root(); err != nil {
		return err
	}
	b.farm, b.json = filepath.Join(b.root, b.farm), filepath.Join(b.root, b.json)
	if b.docs != "" {
		return writeTable(b.json, filepath.Join(b.root, b.docs))
	}
	where := machine()
	for _, dir := range []string{b.logs, b.profiles} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	name, part, _ := strings.Cut(b.run, "/")
	b.part = part
	var failed error
	ran := false
	for _, bm := range benchmarks {
		if name != "" && name != bm.name || name == "" && bm.name == onlyNamed {
			continue
		}
		ran = true
		started := time.Now()
		fmt.Fprintf(os.Stderr, "%s ...\n", bm.name)
		if err := b.one(ctx, bm); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", bm.name, err))
		}
		fmt.Fprintf(os.Stderr, "%s took %s\n", bm.name, time.Since(started).Round(time.Second))
	}
	if !ran {
		return fmt.Errorf("there is no benchmark %q", name)
	}
	b.report.show(os.Stdout)
	return errors.Join(failed, b.report.write(b.json, where, b.more))
}

func (b *bench) one(ctx context.Context, bm benchmark) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bm.limit, fmt.Errorf("not done within %s", bm.limit))
	defer cancel()
	err := bm.run(ctx, b)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return errors.Join(cause, err)
	}
	return err
}
