package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/store"
)

type chaos struct {
	cfg    config
	report *report
	events *events

	serverMachines []*machine
	servers        []*process // in the same order as serverMachines
	agents         []*process // one on the machine of each farm
	farms          []*process
	policies       []string // ids of the farms' ACL policies
	hosts          []*process
	nodes          []*simulated
	credentials    *cluster.Credentials // of the nodes that farms push to

	client []*consul.Client // one through each server
	stores []*store.Store
	keys   *store.Keys

	acting  sync.RWMutex // operators hold it for reading while they act
	keeping sync.RWMutex // clients hold it for reading while they use a register: a restore waits for them
	epoch   int          // of the registers; see registers.go
	lost    error        // why the records that a wipe deleted could not be written back

	resources sync.Map // manifest.Resources of pods, by the digest of their manifest
	stopping  sync.Map // []time.Duration, by digest: how long pods run without contact, at least and at most
	gateURL   string   // of the webhooks of rollouts
	broken    sync.Map // has the digests of manifests whose pods always fail
	spoilt    spoilt   // the records that the run made unreadable

	deadMu    sync.Mutex
	deadNodes []string // nodes whose machine has died
}

const (
	servers  = 3
	farms    = 3
	hosts    = 2  // machines of simulated nodes
	nodesPer = 10 // on each of these machines
)

const (
	bootLimit      = 90 * time.Second
	convergeGoal   = 30 * time.Second // after healing
	convergeLimit  = 90 * time.Second // a run that has not converged after this time counts as never converged
	shutdownLimit  = 30 * time.Second
	initialControl = 8 // controllers before the first fault
)

func inside(ctx context.Context, cfg config) (int, error) {
	c := &chaos{cfg: cfg, report: newReport(cfg)}
	if err := enter(ctx); err != nil {
		return exitHarness, fmt.Errorf("cannot set up network namespaces: %w", err)
	}
	file, err := os.Create(filepath.Join(cfg.dir, checker.EventsFile))
	if err != nil {
		return exitHarness, err
	}
	c.events = &events{file: file}
	err = c.run(ctx)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return exitHarness, err
	}
	return judge(cfg, c.report)
}

func (c *chaos) run(ctx context.Context) error {
	background, stopBackground := context.WithCancel(ctx)
	defer stopBackground()
	var daemons errgroup.Group
	boot, cancel := context.WithTimeoutCause(ctx, bootLimit, errors.New("the cluster did not start in time"))
	defer cancel()
	if err := c.boot(boot); err != nil {
		return err
	}
	for _, n := range c.nodes {
		daemons.Go(func() error { return n.run(background) })
		daemons.Go(func() error { return n.Supervise(background) })
	}
	w := newWorkload(c)
	if err := w.initial(boot); err != nil {
		return err
	}
	d := newDeployer(c, w)
	if c.cfg.rollouts {
		if err := c.serveGates(background); err != nil {
			return err
		}
		if err := d.initial(boot); err != nil {
			return err
		}
	}
	if err := cluster.Until(boot, func() error { return c.converged(boot) }); err != nil {
		return fmt.Errorf("before any fault: %w", err)
	}

	disturbed, calm := context.WithTimeout(ctx, c.cfg.length)
	defer calm()
	c.report.begin()
	var load errgroup.Group
	w.start(disturbed, &load)
	if c.cfg.rollouts {
		d.start(disturbed, &load)
	}
	load.Go(func() error { c.troubles(disturbed); return nil })
	load.Go(func() error { c.comeAndGo(disturbed); return nil })
	registers := c.startRegisters(background, disturbed, &daemons)
	c.nemesis(disturbed)
	calm()
	_ = load.Wait() // workers end with disturbed, and count their errors themselves
	c.report.Length = time.Since(c.report.Started).Round(time.Second).String()
	if c.lost != nil {
		return c.lost
	}
	if err := c.healAll(ctx); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	healed := time.Now()
	if err := c.converge(ctx, w, d, healed); err != nil {
		return err
	}
	registers()
	return c.rest(ctx, stopBackground, &daemons)
}

// converge waits until everything is as its controllers desire. Too late is a violation. If it never is, the checker
// describes what has not converged.
func (c *chaos) converge(ctx context.Context, w *workload, d *deployer, healed time.Time) error {
	limited, cancel := context.WithTimeout(ctx, convergeLimit)
	defer cancel()
	if err := w.sayAgain(limited); err != nil {
		return fmt.Errorf("no controller can be changed after healing: %w", err)
	}
	if err := w.addLast(limited); err != nil {
		return fmt.Errorf("no controller can be created after healing: %w", err)
	}
	err := cluster.Until(limited, func() error {
		var err error
		if c.cfg.rollouts {
			err = d.finish(limited, healed) // first: the last step of a rollout changes controllers once more
		}
		err = errors.Join(err, c.converged(limited))
		if err != nil {
			err = errors.Join(err, c.mend(limited), c.resume(limited), w.sayAgainWhereFound(limited))
		}
		return err
	})
	took := time.Since(healed)
	c.report.Converged = took.Round(10 * time.Millisecond).String()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		c.report.late(fmt.Sprintf("not converged %s after healing: %v", convergeLimit, err))
	case took > convergeGoal:
		c.report.late(fmt.Sprintf("converged %s after healing, allowed %s", took.Round(time.Millisecond), convergeGoal))
	}
	return nil
}

func (c *chaos) rest(ctx context.Context, stop context.CancelFunc, daemons *errgroup.Group) error {
	for _, n := range c.nodes {
		if err := n.atEnd(c.events); err != nil {
			return err
		}
	}
	for _, f := range c.farms {
		f.stop()
	}
	stop()
	if err := daemons.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a simulated node or register ended: %w", err)
	}
	limited, cancel := context.WithTimeoutCause(ctx, shutdownLimit, errors.New("the servers do not come to rest"))
	defer cancel()
	if err := cluster.Until(limited, func() error { return c.saveFinal(limited) }); err != nil {
		return err
	}
	for _, p := range append(append(append([]*process{}, c.hosts...), c.agents...), c.servers...) {
		p.kill()
	}
	return nil
}

func (c *chaos) nemesis(ctx context.Context) {
	rng := newRand(c.cfg.seed, 1)
	all, err := deck(c.cfg)
	if err != nil {
		panic(err) // parse has checked this
	}
	var left []fault
	for ctx.Err() == nil {
		if len(left) == 0 {
			left = append(left, all...)
			rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		var now []fault
		now, left = draw(left, rng)
		var group sync.WaitGroup
		for _, f := range now {
			seed := rng.Int64()
			group.Go(func() { c.strike(ctx, f, newRand(seed, 2)) })
		}
		group.Wait()
		if !wait(ctx, time.Second+upTo(rng, 2*time.Second)) {
			return
		}
	}
}

// draw sometimes takes a second fault, with another target.
func draw(left []fault, rng *rand.Rand) (now, rest []fault) {
	now, rest = left[:1], left[1:]
	if len(rest) > 0 && rest[0].hits != now[0].hits && rest[0].hits != hitsStore &&
		now[0].hits != hitsStore && rng.IntN(4) == 0 {
		return left[:2], rest[1:]
	}
	return now, rest
}

// strike causes one fault and undoes it, even if ctx ends meanwhile.
func (c *chaos) strike(ctx context.Context, f fault, rng *rand.Rand) {
	began := time.Now()
	what, undo, err := f.do(ctx, c, rng)
	c.report.fault(f.name, what, err, ctx.Err() != nil)
	defer func() { c.noteMachine(f, what, began) }()
	if undo == nil {
		return
	}
	wait(ctx, f.hold(c.cfg.ttl)+upTo(rng, 2*time.Second))
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), bootLimit)
	defer cancel()
	if err := undo(undoing); err != nil {
		c.report.fault(f.name+" (undo)", what, err, false)
	}
}

// noteMachine writes that since began a fault disturbed a machine of nodes, or the servers, which report on all
// machines.
func (c *chaos) noteMachine(f fault, what string, began time.Time) {
	e := checker.Event{Kind: checker.EventMachine, Call: began.UnixNano(), At: time.Now().UnixNano()}
	switch {
	case f.machine:
		e.Node = what
	case f.hits != hitsServer && f.name != restoreFault:
		return
	}
	c.events.write(e)
}

// wait returns false when ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// newRand gives the same choices for the same seed and stream.
func newRand(seed int64, stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(seed), stream))
}

func upTo(rng *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(limit)))
}
