package report

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// countingSession counts writes, which return err.
type countingSession struct {
	Realities
	err   error
	sizes []int        // of the transactions
	alone map[int]bool // by index of the identity

	lists   int
	there   []store.Rec[pod.Reality]
	listErr error
	readErr error
}

func (c *countingSession) Reality(context.Context, pod.Identity) (store.Rec[pod.Reality], error) {
	return store.Rec[pod.Reality]{}, c.readErr
}

func (c *countingSession) WriteRealities(_ context.Context, writes ...store.RealityWrite) (uint64, error) {
	if c.sizes = append(c.sizes, len(writes)); len(writes) == 1 {
		c.alone[writes[0].Reality.Index] = true
	}
	if c.err != nil {
		return 0, fmt.Errorf("write: %w", c.err)
	}
	return 1, nil
}

func ident(index int) pod.Identity { return pod.Identity{RCID: "rc", Role: "main", Index: index} }

func publisherOf(pods int, err error) (*Publisher, *countingSession) {
	session := &countingSession{err: err, alone: map[int]bool{}}
	board := NewBoard()
	for i := range pods {
		board.Say(pod.Reality{Identity: ident(i)}, time.Now())
	}
	return &Publisher{
		Board: board, Store: session, Wrote: func() {}, RelistEvery: time.Hour,
		stored: map[pod.Identity]store.Rec[pod.Reality]{},
	}, session
}

// If Consul refuses one record, each is tried alone. Without a session or an answer, no more are tried.
func TestPassGoesOnAfterOneRecord(t *testing.T) {
	t.Parallel()
	const pods = 5
	for _, c := range []struct {
		err   error
		alone int
	}{
		{store.ErrTooLarge, pods},
		{store.ErrRefused, pods},
		{errors.Join(store.ErrLost, store.ErrRefused), 0},
		{errors.New("connection refused"), 0},
	} {
		pub, session := publisherOf(pods, c.err)
		if err := pub.pass(t.Context()); !errors.Is(err, c.err) || len(session.alone) != c.alone ||
			session.sizes[0] != pods {
			t.Errorf("%v: transactions of %d, %d records tried alone, want %d; the pass says %v", c.err, session.sizes,
				len(session.alone), c.alone, err)
		}
	}
	if pub, session := publisherOf(1, store.ErrTooLarge); pub.pass(t.Context()) == nil || len(session.sizes) != 1 {
		t.Errorf("transactions of %d", session.sizes)
	}
}

func (c *countingSession) ListRealities(context.Context) ([]store.Rec[pod.Reality], []error, error) {
	c.lists++
	return c.there, nil, c.listErr
}

// After an unknown outcome, pass reads the realities again, and repeats only missing ones. If the read fails, pass
// tries nothing more.
func TestPassAfterUnknownOutcome(t *testing.T) {
	t.Parallel()
	const pods = 5
	pub, session := publisherOf(pods, store.ErrUnknown)
	session.listErr = errors.New("no answer")
	if err := pub.pass(t.Context()); !errors.Is(err, store.ErrUnknown) || !errors.Is(err, session.listErr) ||
		len(session.sizes) != 1 || session.lists != 1 {
		t.Errorf("%v after transactions of %d and %d lists; want one of each", err, session.sizes, session.lists)
	}
	pub, session = publisherOf(pods, store.ErrUnknown)
	for i := range pods {
		session.there = append(session.there, store.Rec[pod.Reality]{Value: pod.Reality{Identity: ident(i)}, Index: 7})
	}
	if err := pub.pass(t.Context()); err != nil || len(session.sizes) != 1 || session.lists != 1 {
		t.Errorf("%v after transactions of %d and %d lists; want one of each", err, session.sizes, session.lists)
	}
}

// Many realities share few transactions, and are written once.
func TestPassWritesManyTogether(t *testing.T) {
	t.Parallel()
	pub, session := publisherOf(2*store.MaxRealities+1, nil)
	for range 2 {
		if err := pub.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{store.MaxRealities, store.MaxRealities, 1}; !slices.Equal(session.sizes, want) {
		t.Errorf("transactions of %d, want %d", session.sizes, want)
	}
}

// WrittenIn is true if all realities are written, except realities that Consul will never accept. It is false while the
// board lacks pods, and after the node's lock was lost.
func TestRealitiesAreWrittenInAnEpoch(t *testing.T) {
	t.Parallel()
	down := errors.New("connection refused")
	for _, c := range []struct {
		name         string
		err, readErr error
		incomplete   bool
		want         bool
	}{
		{name: "written", want: true},
		{name: "too large", err: store.ErrTooLarge, want: true},
		{name: "refused for itself", err: store.ErrRefused, want: true},
		{name: "the lock is lost", err: errors.Join(store.ErrLost, store.ErrRefused)},
		{name: "changed meanwhile", err: store.ErrConflict, readErr: down},
		{name: "no answer", err: down},
		{name: "a pod was not looked at", incomplete: true},
	} {
		pub, session := publisherOf(1, c.err)
		session.readErr = c.readErr
		epoch, confirmed := "e1", 0
		pub.Epoch = func() string { return epoch }
		pub.Complete = func(func(pod.Identity) bool) bool { return !c.incomplete }
		pub.Confirmed = func() { confirmed++ }
		if err := pub.look(t.Context()); !errors.Is(err, c.err) {
			t.Errorf("%s: the look says %v", c.name, err)
		}
		if pub.WrittenIn(epoch) != c.want || pub.WrittenIn("e2") || (confirmed == 1) != c.want {
			t.Errorf("%s: written in e1 %t, in e2 %t, confirmed %d times", c.name, pub.WrittenIn("e1"),
				pub.WrittenIn("e2"), confirmed)
		}
		if !c.want || c.err != nil {
			continue
		}
		if err := pub.look(t.Context()); err != nil || confirmed != 1 || session.lists != 1 {
			t.Errorf("in the same epoch: %v, confirmed %d times, after %d lists", err, confirmed, session.lists)
		}
		pub.Doubt()
		if pub.WrittenIn(epoch) {
			t.Error("the realities count as written although the lock was lost")
		}
		if err := pub.look(t.Context()); err != nil || !pub.WrittenIn(epoch) || session.lists != 2 {
			t.Errorf("after the lock was taken again: %v, written %t, %d lists", err,
				pub.WrittenIn(epoch), session.lists)
		}
	}
}

// available returns whether Consul has a pod as available. If the board has no reality of such a pod, the realities are
// not complete.
func TestWhatConsulHasAsAvailable(t *testing.T) {
	t.Parallel()
	pub, _ := publisherOf(0, nil)
	pub.stored[ident(0)] = store.Rec[pod.Reality]{Value: pod.Reality{Identity: ident(0), Available: true}}
	pub.stored[ident(1)] = store.Rec[pod.Reality]{Value: pod.Reality{Identity: ident(1)}}
	for i, want := range []bool{true, false, false} {
		if got := pub.available(ident(i)); got != want {
			t.Errorf("%s is available: %t", ident(i), got)
		}
	}
}
