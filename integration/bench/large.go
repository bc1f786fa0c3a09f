package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Goals of failover-large, in seconds after the kill: the TTL of a farm, 2 s, and as long as the rest may take.
const largeLimit = 3.5

const (
	largeFarms    = 3
	largeReplicas = 3
	// changedRCs is how many controllers of the killed farm are changed when it dies.
	changedRCs = 50
	// afterwards is for how long requests are counted after the failover.
	afterwards = 40 * time.Second
)

// failoverLargeBench kills one of three farms that share many controllers, each with three pods, and changes some of those of the killed
// one in the same moment.
func failoverLargeBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	dev, w, err := b.startWorld(ctx, &sc, manyClients, simnode.Fleet{Name: "n", Size: b.nodes, Groups: changeGroups, StartTime: 50 * time.Millisecond})
	if err != nil {
		return err
	}
	var farms []*process
	for i := range largeFarms {
		f, err := b.startFarm(ctx, &sc, w, fmt.Sprintf("farm-%d", i), "", dev.addr)
		if err != nil {
			return err
		}
		farms = append(farms, f)
	}
	for _, f := range farms {
		if err := f.events.seen(ctx, syncedLine); err != nil {
			return err
		}
	}
	rcs, err := w.create(ctx, "web", b.largeRCs, largeReplicas, nil)
	if err != nil {
		return err
	}
	if err := w.converged(ctx, len(rcs)); err != nil {
		return err
	}
	if err := wait.Pause(ctx, atRest); err != nil {
		return err
	}
	idle, err := b.watchRequests(ctx, dev.addr, atRest)
	if err != nil {
		return err
	}
	return b.killOneOf(ctx, w, rcs, farms, idle)
}

// killOneOf kills the first farm and reports how it went on.
func (b *bench) killOneOf(ctx context.Context, w *world, rcs []rc.RC, farms []*process, idle rate) error {
	before, err := w.owners(ctx)
	if err != nil {
		return err
	}
	if len(before) != len(rcs) {
		return fmt.Errorf("%d of %d controllers are owned before the run", len(before), len(rcs))
	}
	shares := map[string][]string{} // by session
	victim := ""                    // its session
	for _, r := range rcs {
		shares[before[r.ID]] = append(shares[before[r.ID]], r.ID)
	}
	for session, ids := range shares {
		if w.ownedBy(ctx, ids[0], farms[0].id) {
			victim = session
		}
	}
	lost := shares[victim]
	if len(lost) < len(rcs)/2/largeFarms {
		return fmt.Errorf("%s owns %d controllers of %d", farms[0].id, len(lost), len(rcs))
	}
	b.report.add("failover-large/lost-controllers", float64(len(lost)), "controllers", goal{})
	counts := b.countRequests(ctx, w.addr)
	started := time.Now()
	if err := farms[0].cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	changed, err := w.changeSome(ctx, started, lost)
	if err != nil {
		return err
	}
	// Not before: each look lists all locks, some megabytes, on the processors that the farms take over with.
	owned, err := w.allOwned(ctx, started, before, victim)
	if err != nil {
		return err
	}
	b.report.add("failover-large/all-owned", owned.Seconds(), "s", atMost(largeLimit))
	b.report.add("failover-large/changes-carried-out", changed.Seconds(), "s", atMost(largeLimit))
	if err := wait.Pause(ctx, afterwards-time.Since(started)); err != nil {
		return err
	}
	perSecond := counts()
	const during = 5 // seconds
	total := 0.0
	for _, n := range perSecond[:min(during, len(perSecond))] {
		total += n - idle.others
	}
	b.report.add("failover-large/requests", total, "requests", goal{})
	b.report.add("failover-large/requests-per-controller", total/float64(len(lost)), "requests", goal{})
	b.report.add("failover-large/requests-worst-second", slices.Max(perSecond), "requests/s", goal{})
	if len(perSecond) > during {
		b.report.add("failover-large/requests-afterwards-worst-second", slices.Max(perSecond[during:])-idle.others, "requests/s", goal{})
	}
	return nil
}

// owners returns the session that holds each controller's lock.
func (w *world) owners(ctx context.Context) (map[string]string, error) {
	pairs, err := w.client.List(ctx, w.keys.Locks.Key(), consul.Default)
	locked := map[string]string{}
	for _, p := range pairs {
		if p.Session != "" {
			locked[p.Key[len(w.keys.Locks.Key()):]] = p.Session
		}
	}
	return locked, err
}

// ownedBy reports whether the status of a controller names a farm as its owner.
func (w *world) ownedBy(ctx context.Context, id, farm string) bool {
	st, err := w.store.Statuses.Get(ctx, store.Default, id)
	return err == nil && st.Value.Owner == farm
}

// allOwned waits until none of the locks is the victim's or nobody's. It lists all of them, which is work, and so not often.
func (w *world) allOwned(ctx context.Context, started time.Time, before map[string]string, victim string) (took time.Duration, err error) {
	const rare = 100 * time.Millisecond
	err = every(ctx, rare, func() error {
		now, err := w.owners(ctx)
		if err != nil {
			return err
		}
		free := len(before) - len(now)
		for id := range now {
			if now[id] == victim {
				free++
			}
		}
		if free > 0 {
			return fmt.Errorf("%d controllers have no new owner", free)
		}
		took = time.Since(started)
		return nil
	})
	return took, err
}

// changeSome adds a replica to some controllers and waits until all of those have their placements.
func (w *world) changeSome(ctx context.Context, started time.Time, ids []string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the changes had no effect"))
	defer cancel()
	var keys []string
	step := max(1, len(ids)/changedRCs)
	for i := 0; i < len(ids) && len(keys) < changedRCs; i += step {
		if err := w.scale(ctx, ids[i], largeReplicas+1); err != nil {
			return 0, err
		}
		keys = append(keys, w.keys.Pods.Key(pod.Identity{RCID: ids[i], Role: rc.DefaultRole, Index: largeReplicas}.String()))
	}
	const pace = 20 * time.Millisecond
	err := every(ctx, pace, func() error {
		there, err := w.client.GetMany(ctx, keys, consul.Default)
		if err == nil && len(there) < len(keys) {
			err = fmt.Errorf("%d of %d changes were carried out", len(there), len(keys))
		}
		return err
	})
	return time.Since(started), err
}

// countRequests counts what Consul answers in each second, liveness left out, until it is asked for what it has.
func (b *bench) countRequests(ctx context.Context, addr string) (stop func() []float64) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	var perSecond []float64
	done := make(chan struct{})
	go func() {
		defer close(done)
		last, err := requestsOf(ctx, addr)
		for err == nil && wait.Pause(ctx, time.Second) == nil {
			var now requests
			if now, err = requestsOf(ctx, addr); err != nil {
				break
			}
			mu.Lock()
			perSecond = append(perSecond, now.others-last.others)
			mu.Unlock()
			if last = now; b.logs != "" {
				fmt.Fprintf(os.Stderr, "    %.0f requests in second %d\n", perSecond[len(perSecond)-1], len(perSecond))
			}
		}
	}()
	return func() []float64 { cancel(); <-done; return perSecond }
}
