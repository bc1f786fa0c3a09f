package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const changedRCs = 50

// takeover has times since the kill.
type takeover struct {
	started     time.Time
	units       int // of the killed farm
	controllers int
	// session is when Consul ended the killed farm's session, which deletes its member record.
	session time.Duration
	// firstLock is when a changed unit's lock was taken. Farms list all locks, and take these first.
	firstLock time.Duration
	// lastLock is when the other farms logged the last claim of a unit.
	lastLock time.Duration
	// firstChange and lastChange are when placements of the changed controllers could be read.
	firstChange, lastChange time.Duration
	// owned is when a list has shown that all locks have another owner. It is not read before the last change.
	owned time.Duration
}

// killFirst kills the first farm, changes some of its controllers at the same moment, and returns when others own all
// of its units.
func (w *world) killFirst(ctx context.Context, rcs []rc.RC, farms []*process) (*takeover, error) {
	before, err := w.owners(ctx)
	if err != nil {
		return nil, err
	}
	if units := len(unitsOf(rcs)); len(before) != units {
		return nil, fmt.Errorf("%d of %d units are owned before the run", len(before), units)
	}
	shares := map[string][]rc.RC{} // by session
	victim := ""                   // its session
	for _, r := range rcs {
		session := before[rc.UnitOf(r.ID)]
		shares[session] = append(shares[session], r)
	}
	for session, share := range shares {
		if w.ownedBy(ctx, share[0].ID, farms[0].id) {
			victim = session
		}
	}
	lost := shares[victim]
	if len(lost) < len(rcs)/2/len(farms) {
		return nil, fmt.Errorf("%s owns %d controllers of %d", farms[0].id, len(lost), len(rcs))
	}
	var some []rc.RC
	for i := 0; i < len(lost) && len(some) < changedRCs; i += max(1, len(lost)/changedRCs) {
		some = append(some, lost[i])
	}
	t := &takeover{units: len(unitsOf(lost)), controllers: len(lost)}
	var sc scope
	defer sc.close()
	session, firstLock := w.watchDeath(ctx, &sc, farms[0].id, victim, unitsOf(some))
	t.started = time.Now()
	if err := farms[0].cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return nil, err
	}
	if err := w.changeSome(ctx, t, some); err != nil {
		return nil, err
	}
	// Only now, because each list of all locks has megabytes, and takes processor time from the farms.
	if err := w.allOwned(ctx, t, before, victim); err != nil {
		return nil, err
	}
	for _, f := range farms[1:] {
		if last := f.events.lastClaim(); last.After(t.started) {
			t.lastLock = max(t.lastLock, last.Sub(t.started))
		}
	}
	t.session, t.firstLock = session.since(t.started), firstLock.since(t.started)
	return t, nil
}

type moment struct {
	mu sync.Mutex
	at time.Time
}

func (m *moment) seen() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() {
		m.at = time.Now()
	}
}

// since returns zero if the moment was not seen.
func (m *moment) since(start time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() {
		return 0
	}
	return m.at.Sub(start)
}

// watchDeath watches a farm's member record, and a few units' locks, because more would cost too much.
func (w *world) watchDeath(
	ctx context.Context, sc *scope, farm, session string, units []string,
) (ended, taken *moment) {
	const few = 8
	ended, taken = &moment{}, &moment{}
	watch := func(key string, look func([]consul.Pair)) {
		background(ctx, sc, func(ctx context.Context) error {
			return w.client.WatchKey(ctx, key, consul.WatchOptions{}, func(s consul.Snapshot) error {
				look(s.Pairs)
				return nil
			})
		})
	}
	watch(w.keys.Farms.Key(farm), func(pairs []consul.Pair) {
		if len(pairs) == 0 {
			ended.seen()
		}
	})
	for _, unit := range units[max(0, len(units)-few):] { // the units that are changed last
		watch(w.keys.Locks.Key(unit), func(pairs []consul.Pair) {
			if len(pairs) > 0 && pairs[0].Session != "" && pairs[0].Session != session {
				taken.seen()
			}
		})
	}
	return ended, taken
}

func (t *takeover) report(to *report, prefix string) {
	to.add(prefix+"lost-units", float64(t.units), "units", goal{})
	to.add(prefix+"lost-controllers", float64(t.controllers), "controllers", goal{})
	for _, step := range []struct {
		what string
		took time.Duration
	}{
		{"session-ended", t.session},
		{"first-lock-taken", t.firstLock},
		{"all-locks-taken", t.lastLock},
		{"first-change", t.firstChange},
	} {
		if step.took > 0 { // it was seen
			to.add(prefix+step.what, step.took.Seconds(), "s", goal{})
		}
	}
}

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

func (w *world) ownedBy(ctx context.Context, id, farm string) bool {
	st, err := w.store.Statuses.Get(ctx, store.Default, id)
	return err == nil && st.Value.Owner == farm
}

// allOwned waits until every lock has an owner other than the victim. It asks rarely: each time it lists all locks.
func (w *world) allOwned(ctx context.Context, t *takeover, before map[string]string, victim string) error {
	const rare = 100 * time.Millisecond
	return every(ctx, rare, func() error {
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
			return fmt.Errorf("%d units have no new owner", free)
		}
		t.owned = time.Since(t.started)
		return nil
	})
}

func (w *world) changeSome(ctx context.Context, t *takeover, rcs []rc.RC) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the changes had no effect"))
	defer cancel()
	var keys []string
	for _, r := range rcs {
		n := r.Desired()
		if err := w.scale(ctx, r.ID, n+1); err != nil {
			return err
		}
		keys = append(keys, w.keys.Pods.Key(pod.Identity{RCID: r.ID, Role: rc.DefaultRole, Index: n}.String()))
	}
	const pace = 20 * time.Millisecond
	err := every(ctx, pace, func() error {
		there, err := w.client.GetMany(ctx, keys, consul.Default)
		if len(there) > 0 && t.firstChange == 0 {
			t.firstChange = time.Since(t.started)
		}
		if err == nil && len(there) < len(keys) {
			err = fmt.Errorf("%d of %d changes were carried out", len(there), len(keys))
		}
		return err
	})
	t.lastChange = time.Since(t.started)
	return err
}
