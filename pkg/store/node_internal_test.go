package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

type noJournal struct{}

func (noJournal) Incarnations() ([]string, error) { return nil, nil }
func (noJournal) Add(string) error                { return nil }
func (noJournal) Remove(string) error             { return nil }

// nodeSession holds its node's lock until lose.
func nodeSession(t *testing.T) (st *Store, session *NodeSession, lose func()) {
	t.Helper()
	st = empty(t)
	ctx, cancel := context.WithCancel(t.Context())
	sessions, ended := make(chan *NodeSession), make(chan error)
	go func() {
		ended <- st.c.RunSession(ctx,
			consul.SessionConfig{Kind: "preparer", Name: "n1", TTL: time.Minute, Journal: noJournal{}},
			func(ctx context.Context, sess *consul.Session) error {
				session := st.NodeSession(sess, "n1")
				if err := session.AcquireNode(ctx, node.Node{Name: "n1"}, false); err != nil {
					return err
				}
				sessions <- session
				<-ctx.Done()
				return context.Cause(ctx)
			})
	}()
	lose = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(lose)
	return st, <-sessions, lose
}

func reports(n int) []RealityWrite {
	var writes []RealityWrite
	for i := range n {
		id := pod.Identity{RCID: fmt.Sprintf("rc-%d", i%3), Role: "main", Index: i}
		writes = append(writes,
			RealityWrite{Reality: pod.Reality{
				Identity: id, Node: "n1", State: pod.StateRunning,
				Since: time.Now().UTC(),
			}})
	}
	return writes
}

// The most realities fit into one transaction, with the bell of each controller.
func TestWriteRealities(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	writes := reports(MaxRealities)
	// Each reality is of another controller, so the transaction has the most bells.
	for i := range writes {
		writes[i].Reality.RCID = fmt.Sprintf("rc-%d", i)
	}
	index, err := session.WriteRealities(t.Context(), writes...)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range writes {
		rec, err := session.Reality(t.Context(), w.Reality.Identity)
		if err != nil || rec.Index != index || rec.Value.State != pod.StateRunning {
			t.Errorf("%s: %+v, %v; want it at index %d", w.Reality.Identity, rec, err, index)
		}
		if bell, err := st.c.Get(t.Context(), st.keys.Bells.Key(w.Reality.RCID), consul.Consistent); err != nil ||
			bell.ModifyIndex != index {
			t.Errorf("the bell of %s: %+v, %v; want it rung in the same transaction", w.Reality.RCID, bell, err)
		}
	}
}

// A reality has AllEnded and OutOfMemory only if the gate allows these fields.
func TestRealitiesHaveOnlyWhatTheGateAllows(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	w := reports(1)[0]
	w.Reality.State, w.Reality.Available, w.Reality.AllEnded = pod.StateFailed, false, true
	w.Reality.LastExit = &pod.Exit{
		Code: -1, Signal: "SIGKILL", OutOfMemory: true, MemoryLimit: 1 << 20,
		At: time.Unix(1, 0),
	}
	written := func() pod.Reality {
		t.Helper()
		index, err := session.WriteRealities(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := session.Reality(t.Context(), w.Reality.Identity)
		if err != nil {
			t.Fatal(err)
		}
		w.Index, w.Before = index, rec.Value
		return rec.Value
	}
	write(t, st, consul.Set(st.keys.Gate.Key(), []byte(`{"version":"0.1.0"}`)))
	session.guard.forget()
	if _, _, err := session.guard.present(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := written(); r.AllEnded || r.LastExit.OutOfMemory || r.LastExit.MemoryLimit != 0 ||
		r.LastExit.Signal != "SIGKILL" || r.State != pod.StateFailed {
		t.Errorf("written is %+v under an older gate", r)
	}
	st.raise(t, feature.Known.Named("all-ended").Since)
	session.guard.forget()
	if _, _, err := session.guard.present(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := written(); !r.AllEnded || !r.LastExit.OutOfMemory || r.LastExit.MemoryLimit != 1<<20 {
		t.Errorf("written is %+v under a gate that allows it", r)
	}
	if !w.Reality.AllEnded || !w.Reality.LastExit.OutOfMemory {
		t.Error("what was given was changed")
	}
}

// If Consul refuses one of the writes, none is written.
func TestWriteRealitiesTogetherOrNot(t *testing.T) {
	t.Parallel()
	_, session, lose := nodeSession(t)
	writes := reports(5)
	if _, err := session.WriteRealities(t.Context(), writes[2]); err != nil {
		t.Fatal(err)
	}
	if _, err := session.WriteRealities(t.Context(), writes...); !errors.Is(err, ErrConflict) {
		t.Errorf("one of them exists already: %v", err)
	}
	if recs, _, err := session.ListRealities(t.Context()); err != nil || len(recs) != 1 {
		t.Errorf("%d realities, %v; want the first alone", len(recs), err)
	}
	lose()
	if _, err := session.WriteRealities(t.Context(), writes[:2]...); !errors.Is(err, ErrLost) {
		t.Errorf("without the lock: %v", err)
	}
}

func fallen(r pod.Reality) pod.Reality {
	r.State, r.Available = pod.StateFailed, false
	return r
}

func dropsOf(t *testing.T, st *Store, rcID string) Drops {
	t.Helper()
	pairs, err := st.c.List(t.Context(), st.keys.Drops.Below(rcID), consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	found, err := st.c.GetMany(t.Context(), []string{st.keys.Drops.Key(rcID)}, consul.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	return st.dropsOf(rcID, found, pairs)
}

// available writes realities of available pods, and returns writes with which these drop.
func available(t *testing.T, session *NodeSession, n int) []RealityWrite {
	t.Helper()
	writes := reports(n)
	for i := range writes {
		writes[i].Reality.Available, writes[i].Reality.Digest = true, hexOf("m")
	}
	index, err := session.WriteRealities(t.Context(), writes...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range writes {
		before := writes[i].Reality
		writes[i] = RealityWrite{Reality: fallen(before), Before: before, Index: index}
	}
	return writes
}

// The transaction that reports that a copy stopped being available counts it for its unit, each time, in a later
// session of the node, and after the counter was removed or damaged. A farm that has read the counters before can
// compute the drops since, or sees that it cannot.
func TestDropsAreCounted(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	falls := available(t, session, 9)
	none := dropsOf(t, st, "rc-0")
	if none.Index != 0 || len(none.Counts) != 0 {
		t.Fatalf("%+v before anything dropped", none)
	}
	write := func(session *NodeSession, w ...RealityWrite) Drops {
		t.Helper()
		index, err := session.WriteRealities(t.Context(), w...)
		if err != nil {
			t.Fatal(err)
		}
		d := dropsOf(t, st, "rc-0")
		if d.Index != index {
			t.Errorf("drops at %d, the report at %d", d.Index, index)
		}
		return d
	}
	two := write(session, falls[0], falls[1], falls[3]) // the second is of another controller
	if n, known := two.Since(none); known {
		t.Errorf("%d drops since there was no key", n)
	}
	if n, known := two.Since(Drops{Created: two.Created, Counts: none.Counts}); n != 2 || !known {
		t.Errorf("%d drops (%t), want 2: %+v", n, known, two)
	}
	later := st.NodeSession(session.sess, "n1")
	three := write(later, falls[6])
	if n, known := three.Since(two); n != 1 || !known {
		t.Errorf("%d drops (%t), want 1: %+v after %+v", n, known, three, two)
	}
	if n, known := three.Since(three); n != 0 || !known {
		t.Errorf("%d drops since the same", n)
	}
	if err := st.MakeDrops(t.Context(), "rc-0"); err != nil || dropsOf(t, st, "rc-0").Index != three.Index {
		t.Errorf("made where it is: %v", err)
	}
	for what, damage := range map[string]consul.Op{
		"all removed": consul.DeleteTree(st.keys.Drops.Key("rc-0")),
		"removed":     consul.Delete(st.keys.Drops.Key("rc-0", "n1")), "damaged": consul.Set(
			st.keys.Drops.Key("rc-0", "n1"), []byte("{")),
	} {
		before := dropsOf(t, st, "rc-0")
		if _, err := st.c.Commit(t.Context(), []consul.Op{damage}); err != nil {
			t.Fatal(err)
		}
		up := RealityWrite{Reality: falls[6].Before, Before: falls[6].Reality}
		rec, err := session.Reality(t.Context(), up.Reality.Identity)
		if err != nil {
			t.Fatal(err)
		}
		up.Index = rec.Index
		if rec.Index, err = session.WriteRealities(t.Context(), up); err != nil {
			t.Fatal(err)
		}
		down := falls[6]
		down.Index = rec.Index
		if _, err := later.WriteRealities(t.Context(), down); !errors.Is(err, ErrConflict) {
			t.Fatalf("%s: with the index of before: %v", what, err)
		}
		after := write(later, down)
		if n, known := after.Since(before); known {
			t.Errorf("%s and made anew: %d drops", what, n)
		}
		if n, known := after.Since(Drops{Created: after.Created, Counts: none.Counts}); n != 1 || !known {
			t.Errorf("%s and made anew: %d drops (%t) in all", what, n, known)
		}
	}
}

// It is no drop if a pod becomes, stays, or never was available, or if its unchanged intent is to stop.
func TestNoDrops(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	w := available(t, session, 1)[0]
	same := w
	same.Reality = same.Before
	same.Reality.Restarts++
	var err error
	if w.Index, err = session.WriteRealities(t.Context(), same); err != nil {
		t.Fatal(err)
	}
	w.Before = same.Reality
	intent := st.keys.Intents.Key("n1", w.Reality.Identity.String())
	written, err := st.c.Commit(t.Context(), []consul.Op{consul.Set(intent, []byte("{}"))})
	if err != nil {
		t.Fatal(err)
	}
	w.StopIndex = written[intent] - 1
	if _, err := session.WriteRealities(t.Context(), w); !errors.Is(err, ErrConflict) {
		t.Errorf("on another intent: %v", err)
	}
	w.StopIndex++
	if w.Index, err = session.WriteRealities(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if err := session.DeleteReality(t.Context(), w.Reality, w.Reality.Identity, w.Index); err != nil {
		t.Fatal(err)
	}
	if d := dropsOf(t, st, "rc-0"); d.Index != 0 || len(d.Counts) != 0 {
		t.Errorf("%+v", d)
	}
}

// It is a drop if an available copy reports another version, because a farm may wait for a version, or if its report is
// removed.
func TestOtherDrops(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	w := available(t, session, 1)[0]
	w.Reality = w.Before
	w.Reality.Digest = hexOf("other")
	var err error
	if w.Index, err = session.WriteRealities(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if err := session.DeleteReality(t.Context(), w.Reality, w.Reality.Identity, w.Index); err != nil {
		t.Fatal(err)
	}
	d := dropsOf(t, st, "rc-0")
	if n, known := d.Since(Drops{Created: d.Created, Counts: map[string]DropCount{}}); n != 2 || !known {
		t.Errorf("%d drops (%t), want 2", n, known)
	}
}

// As many realities as Together returns fit into one transaction, with any bells and drops.
func TestTogether(t *testing.T) {
	t.Parallel()
	_, session, _ := nodeSession(t)
	for _, tt := range []struct {
		name   string
		change func(i int, w *RealityWrite)
		want   int
	}{
		{"one controller's", func(_ int, w *RealityWrite) { w.Reality.RCID = "rc" }, MaxRealities},
		{
			"of one controller each", func(i int, w *RealityWrite) { w.Reality.RCID = fmt.Sprint("rc-", i) },
			(consul.MaxTxnOps - 1) / 5,
		},
		{
			"stopped", func(i int, w *RealityWrite) { w.Reality.RCID, w.StopIndex = fmt.Sprint("rc-", i), 1 },
			(consul.MaxTxnOps - 1) / 3,
		},
	} {
		writes := reports(MaxRealities + 1)
		for i := range writes {
			tt.change(i, &writes[i])
			writes[i].Index, writes[i].Before.Available = 1, true
		}
		got := Together(writes)
		if got != tt.want {
			t.Errorf("%s: %d together, want %d", tt.name, got, tt.want)
		}
		// There are no such realities, so the conditions fail. But the transaction is not too large.
		if _, err := session.WriteRealities(t.Context(), writes[:got]...); !errors.Is(err, ErrConflict) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// SweepDrops removes only the drops of units without a controller.
func TestSweepDrops(t *testing.T) {
	t.Parallel()
	st, session, _ := nodeSession(t)
	if _, err := session.WriteRealities(t.Context(), available(t, session, 3)...); err != nil {
		t.Fatal(err)
	}
	if _, err := st.c.Commit(t.Context(), []consul.Op{consul.Set(st.keys.RCs.Key("rc-1"), []byte("{"))}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 1, 0} {
		if n, err := st.Leader("f", st.c.Commit).SweepDrops(t.Context(), 1); n != want || err != nil {
			t.Errorf("removed %d, %v; want %d", n, err, want)
		}
	}
	for id, want := range map[string]int{"rc-0": 0, "rc-1": 1, "rc-2": 0} {
		if d := dropsOf(t, st, id); len(d.Counts) != want || (d.Index != 0) != (want != 0) {
			t.Errorf("%s: %+v", id, d)
		}
	}
}
