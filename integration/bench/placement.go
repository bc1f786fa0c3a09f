package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

type shape struct {
	name                   string
	rcs, replicas, perNode int
	small                  bool // compared with bare reads and writes, not with writes alone
}

type placing struct {
	name   string
	shape  shape
	nodes  int
	farms  int
	delay  time.Duration // each way between a farm and Consul
	spread bool
}

type placed struct {
	took      time.Duration // from the operators' first write to the last intent
	reference time.Duration
	atOnce    int           // transactions in flight when the reference was fastest
	cpu       time.Duration // of farms, nodes and Consul together
	refCPU    time.Duration // of client and Consul
	requests  float64       // that Consul has answered, from all clients
	pods      int
	refused   float64 // share of the batches
}

func (p placed) rate() float64  { return float64(p.pods) / p.took.Seconds() }
func (p placed) share() float64 { return p.reference.Seconds() / p.took.Seconds() }

const (
	oneShare     = 0.6 // of the reference
	smallShare   = 0.5
	refusedMost  = 10 // percent
	spreadMost   = 2  // times the plain run
	manyMost     = 1.5
	delayedShare = 0.5 // of the rate without delay
	oneWayDelay  = 5 * time.Millisecond
)

// spent returns the processor time of this program and a Consul so far. Unlike elapsed times, other work on the machine
// hardly changes it.
func spent(a *agent) time.Duration {
	own, err := cpu(os.Getpid())
	theirs, err2 := cpu(a.proc.Pid)
	if err != nil || err2 != nil {
		return 0
	}
	return own + theirs
}

func placementBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	dev, err := b.startDev(ctx, &sc, manyClients)
	if err != nil {
		return err
	}
	one := shape{name: "one", rcs: 1, replicas: b.onePods, perNode: 10}
	medium := shape{name: "medium", rcs: b.mediumRCs, replicas: 25}
	small := shape{name: "small", rcs: b.smallRCs, replicas: 3, small: true}
	for _, s := range []shape{one, medium, small} {
		if err := b.placementOf(ctx, dev, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if !b.wants("disk") {
		return nil
	}
	sc.close()
	disk, err := b.startThree(ctx, &sc)
	if err != nil {
		return err
	}
	for _, s := range []shape{one, medium, small} {
		if _, err := b.place(ctx, disk, placing{name: "disk-" + s.name, shape: s, nodes: b.nodes, farms: 1},
			true); err != nil {
			return fmt.Errorf("three servers, %s: %w", s.name, err)
		}
	}
	return nil
}

// placementOf measures one shape: plain, and then the variants that are compared with plain.
func (b *bench) placementOf(ctx context.Context, a *agent, s shape) error {
	base := placing{name: s.name, shape: s, nodes: b.nodes, farms: 1}
	others := map[string]func(*placing){
		"spread": func(p *placing) { p.spread = true },
		"many":   func(p *placing) { p.nodes = b.manyNodes },
		"delay":  func(p *placing) { p.delay = oneWayDelay },
		"farms2": func(p *placing) { p.farms = 2 },
		"farms4": func(p *placing) { p.farms = 4 },
	}
	wanted := []string{}
	for _, name := range []string{"spread", "many", "delay", "farms2", "farms4"} {
		multi := strings.HasPrefix(name, "farms")
		if b.wants(s.name+"-"+name) && (s.name != "medium" || name == "spread") && (!multi || s.small) {
			wanted = append(wanted, name)
		}
	}
	if len(wanted) == 0 && !b.wants(s.name+"-plain") {
		return nil
	}
	plain, err := b.place(ctx, a, base, true)
	if err != nil {
		return err
	}
	for _, name := range wanted {
		p := base
		p.name = s.name + "-" + name
		others[name](&p)
		got, err := b.place(ctx, a, p, strings.HasPrefix(name, "farms"))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		prefix := "placement/" + p.name + "/"
		switch {
		case p.delay > 0:
			b.report.add(prefix+"share-of-loopback", got.rate()/plain.rate(), "ratio", atLeast(delayedShare))
		case p.spread:
			b.report.add(prefix+"times-plain", got.took.Seconds()/plain.took.Seconds(), "ratio", atMost(spreadMost))
		case p.nodes != base.nodes:
			b.report.add(prefix+"times-1000-nodes", got.took.Seconds()/plain.took.Seconds(), "ratio", atMost(manyMost))
		}
	}
	return nil
}

// place runs a part several times, and returns and reports the run with the median share of its reference.
func (b *bench) place(ctx context.Context, a *agent, p placing, compare bool) (placed, error) {
	var runs []placed
	for range b.repeat {
		run, err := b.placeOnce(ctx, a, p, compare)
		if err != nil {
			return placed{}, err
		}
		runs = append(runs, run)
	}
	slices.SortFunc(runs, func(x, y placed) int { return cmp.Compare(x.took, y.took) })
	run := runs[len(runs)/2]
	prefix := "placement/" + p.name + "/"
	b.report.add(prefix+"rate", run.rate(), "pods/s", goal{})
	b.report.add(prefix+"requests-per-controller", run.requests/float64(p.shape.rcs), "requests", goal{})
	if compare {
		// The machine is shared, so each run has its own reference.
		slices.SortFunc(runs, func(x, y placed) int { return cmp.Compare(x.share(), y.share()) })
		share := atLeast(oneShare)
		if p.shape.small {
			share = atLeast(smallShare)
		}
		if p.shape.name == "medium" {
			share = goal{}
		}
		b.report.add(prefix+"reference", float64(run.pods)/run.reference.Seconds(), "pods/s", goal{})
		b.report.add(prefix+"reference-in-flight", float64(run.atOnce), "transactions", goal{})
		b.report.add(prefix+"share-of-reference", runs[len(runs)/2].share(), "ratio", share)
		b.report.add(prefix+"cpu-times-reference", run.cpu.Seconds()/max(run.refCPU.Seconds(), 0.01), "ratio", goal{})
		b.report.add(prefix+"refused-batches", 100*run.refused, "%", below(refusedMost))
	}
	return run, nil
}

func (b *bench) placeOnce(ctx context.Context, a *agent, p placing, compare bool) (placed, error) {
	var all, sc scope // sc: what must rest while the reference runs
	defer all.close()
	defer sc.close()
	w, err := newWorld(ctx, &all, a.addr)
	if err != nil {
		return placed{}, err
	}
	run := placed{pods: p.shape.rcs * p.shape.replicas}
	noted := newCommits(run.pods)
	if err := b.startPlacing(ctx, &sc, w, p, noted); err != nil {
		return placed{}, err
	}
	asked, err := requestsOf(ctx, a.addr)
	if err != nil {
		return placed{}, err
	}
	stopProfile, err := b.profile(ctx, a, p.name)
	if err != nil {
		return placed{}, err
	}
	started, before := time.Now(), spent(a)
	_, err = w.create(ctx, "web", p.shape.rcs, p.shape.replicas, func(r *rc.RC) {
		r.MaxPerNode = p.shape.perNode
		if p.spread {
			r.Spread.Label = "rack"
		}
	})
	if err != nil {
		return placed{}, err
	}
	select {
	case <-noted.reached:
	case <-ctx.Done():
		return placed{}, fmt.Errorf("%s: not all of %d pods were placed: %w", p.name, run.pods, context.Cause(ctx))
	}
	run.cpu = spent(a) - before
	run.took = noted.at.Sub(started)
	answered, err := requestsOf(ctx, a.addr)
	if err := errors.Join(err, stopProfile()); err != nil {
		return placed{}, err
	}
	run.requests = answered.others - asked.others
	sc.close()
	run.refused = noted.refusedShare()
	if compare {
		run.reference, run.refCPU, run.atOnce, err = w.reference(ctx, a, noted.placing, p.shape.small)
	}
	return run, err
}

// startPlacing returns when all farms may place.
func (b *bench) startPlacing(ctx context.Context, sc *scope, w *world, p placing, noted *commits) error {
	if _, err := w.fleet(ctx, sc, simnode.Fleet{Name: "n", Size: p.nodes}); err != nil {
		return err
	}
	addr := w.addr
	if p.delay > 0 {
		slow, err := startProxy(sc, addr, p.delay)
		if err != nil {
			return err
		}
		addr = slow.addr
	}
	var farms errgroup.Group
	for i := range p.farms {
		var farmScope scope
		sc.add(farmScope.close)
		farms.Go(func() error {
			return b.farmIn(ctx, &farmScope, w, fmt.Sprintf("farm-%d", i), addr, noted)
		})
	}
	return farms.Wait()
}

const consulProfile = 2 * time.Second

func (b *bench) profile(ctx context.Context, a *agent, name string) (stop func() error, err error) {
	if b.profiles == "" {
		return func() error { return nil }, nil
	}
	own, err := b.profileItself(name)
	if err != nil {
		return nil, err
	}
	var consul errgroup.Group
	consul.Go(func() error {
		if !a.dev {
			return nil // only a Consul in dev mode has profiles
		}
		page, err := cluster.Get(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d",
			a.addr, int(consulProfile.Seconds())))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(b.profiles, name+"-consul.pprof"), []byte(page), 0o644)
	})
	return func() error {
		return errors.Join(own(), consul.Wait())
	}, nil
}

func (b *bench) profileItself(name string) (stop func() error, err error) {
	file, err := os.Create(filepath.Join(b.profiles, name+".pprof"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}
