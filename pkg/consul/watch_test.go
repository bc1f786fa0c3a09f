package consul_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

type watcher struct {
	snaps  chan consul.Snapshot
	errs   chan error
	cancel context.CancelCauseFunc
	all    sync.WaitGroup
	result error
}

var errTestDone = errors.New("test done")

type watchFunc func(context.Context, string, consul.WatchOptions, func(consul.Snapshot) error) error

func startWatch(t *testing.T, c *consul.Client, prefix string, o consul.WatchOptions) *watcher {
	t.Helper()
	return startWatchWith(t, c.WatchPrefix, prefix, o)
}

func startWatchWith(t *testing.T, watch watchFunc, key string, o consul.WatchOptions) *watcher {
	t.Helper()
	w := &watcher{snaps: make(chan consul.Snapshot), errs: make(chan error, 1000)}
	ctx, cancel := context.WithCancelCause(t.Context())
	w.cancel = cancel
	o.OnError = func(err error) { w.errs <- err }
	w.all.Go(func() {
		w.result = watch(ctx, key, o, func(s consul.Snapshot) error {
			select {
			case w.snaps <- s:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	t.Cleanup(w.stop)
	return w
}

func (w *watcher) next(t *testing.T) consul.Snapshot {
	t.Helper()
	return receive(t, w.snaps)
}

func (w *watcher) stop() {
	w.cancel(errTestDone)
	w.all.Wait()
}

func (w *watcher) until(t *testing.T, wanted func(consul.Snapshot) bool) consul.Snapshot {
	t.Helper()
	for {
		if s := w.next(t); wanted(s) {
			return s
		}
	}
}

func contents(s consul.Snapshot) string {
	var b strings.Builder
	for _, p := range s.Pairs {
		fmt.Fprintf(&b, "%s=%s ", p.Key[strings.LastIndex(p.Key, "/")+1:], p.Value)
	}
	return strings.TrimSpace(b.String())
}

func TestWatchPrefixDeliversEachChange(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	w := startWatch(t, c, prefix+"w/", consul.WatchOptions{})
	want := func(wanted string) {
		t.Helper()
		if s := w.next(t); contents(s) != wanted || s.WentBack {
			t.Fatalf("got %q went back=%v, want %q", contents(s), s.WentBack, wanted)
		}
	}
	want("") // an empty prefix is delivered, too
	put(t, c, prefix+"w/a", "1")
	want("a=1")
	put(t, c, prefix+"w/b", "2")
	want("a=1 b=2")
	put(t, c, prefix+"w/a", "3")
	want("a=3 b=2")
	session := rawSession(t, raw, nil)
	must[consul.Fence](t)(c.Locks.Acquire(t.Context(), prefix+"w/b", session, func() []byte { return []byte("held") }))
	if s := w.next(t); s.Pairs[1].Session != session {
		t.Fatalf("the lock is not in %+v", s)
	}
	if _, err := raw.Session().Destroy(session, nil); err != nil {
		t.Fatal(err)
	}
	if s := w.next(t); s.Pairs[1].Session != "" {
		t.Fatalf("the holder's death is not in %+v", s)
	}
	drop(t, c, prefix+"w/a")
	want("b=held")
	drop(t, c, prefix+"w/b")
	want("")
	put(t, c, prefix+"w/a", "back")
	want("a=back")
	w.stop()
	if !errors.Is(w.result, errTestDone) {
		t.Fatalf("the watch returned %v, want the cause", w.result)
	}
}

func TestWatchKeyDeliversEachChange(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	w := startWatchWith(t, c.WatchKey, prefix+"k", consul.WatchOptions{})
	want := func(wanted string) {
		t.Helper()
		if s := w.next(t); contents(s) != wanted || s.WentBack {
			t.Fatalf("got %q went back=%v, want %q", contents(s), s.WentBack, wanted)
		}
	}
	want("") // a missing key is delivered, too
	put(t, c, prefix+"k", "1")
	want("k=1")
	put(t, c, prefix+"kk", "a longer name is another key")
	put(t, c, prefix+"k", "2")
	want("k=2")
	drop(t, c, prefix+"k")
	want("")
	put(t, c, prefix+"k", "3")
	want("k=3")
	w.stop()
	if !errors.Is(w.result, errTestDone) {
		t.Fatalf("the watch returned %v, want the cause", w.result)
	}
}

// A watch delivers nothing if a write changes nothing. A watch of an empty prefix or of a missing key delivers nothing
// if other keys change.
func TestWatchDeliversOnlyChanges(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	empty := startWatch(t, c, prefix+"empty/", consul.WatchOptions{})
	missing := startWatchWith(t, c.WatchKey, prefix+"missing", consul.WatchOptions{})
	put(t, c, prefix+"same/k", "same")
	same := startWatch(t, c, prefix+"same/", consul.WatchOptions{})
	for _, w := range []*watcher{empty, missing, same} {
		w.next(t)
	}
	for i := range 50 {
		put(t, c, prefix+"same/k", "same")
		put(t, c, prefix+"elsewhere", fmt.Sprint(i))
	}
	put(t, c, prefix+"empty/k", "1")
	put(t, c, prefix+"missing", "1")
	put(t, c, prefix+"same/k", "1")
	for name, w := range map[string]*watcher{"empty prefix": empty, "missing key": missing, "identical value": same} {
		if s := w.next(t); len(s.Pairs) != 1 || string(s.Pairs[0].Value) != "1" {
			t.Errorf("%s: delivered %q before the change", name, contents(s))
		}
	}
}

func TestWatchSlowReceiverGetsTheNewest(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	w := startWatch(t, c, prefix, consul.WatchOptions{})
	w.next(t)
	const writes = 200
	for i := range writes {
		put(t, c, prefix+"k", fmt.Sprint(i))
	}
	// One delivery may have waited since the first write.
	deliveries := 0
	w.until(t, func(s consul.Snapshot) bool {
		deliveries++
		return contents(s) == fmt.Sprintf("k=%d", writes-1)
	})
	if deliveries > 2 {
		t.Fatalf("%d deliveries to a slow receiver", deliveries)
	}
}

// In a storm of writes, a watch reads few snapshots, because the gap bounds its requests.
func TestWatchGapBoundsRequestsInAStorm(t *testing.T) {
	t.Parallel()
	direct, _, prefix := setup(t)
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	w := startWatch(t, clientOf(t, consul.Config{Address: p.Addr}), prefix, consul.WatchOptions{})
	w.next(t)
	const requests = 20
	started, writes := time.Now(), 0
	for ; p.Seen() < requests; writes++ {
		put(t, direct, prefix+"k", fmt.Sprint(writes))
		select {
		case <-w.snaps:
		default:
		}
	}
	took := time.Since(started)
	t.Logf("%d writes and %d requests in %s", writes, requests, took.Round(time.Millisecond))
	// The first gaps are 20, 40 and 80 ms.
	if least := (requests - 6) * 100 * time.Millisecond; took < least {
		t.Fatalf("%d requests came in %s, in less than %s", requests, took, least)
	}
}

// An idle watch sends few requests. With a short wait, many queries end, and each costs two requests: one that waits,
// and one from index zero because the index did not advance.
func TestWatchDoesNotSpinWhileIdle(t *testing.T) {
	t.Parallel()
	direct, _, prefix := setup(t)
	put(t, direct, prefix+"w/", "marker")
	const wait, periods = 500 * time.Millisecond, 6
	for name, watch := range map[string]func(*consul.Client) watchFunc{
		"prefix": func(c *consul.Client) watchFunc { return c.WatchPrefix },
		"key":    func(c *consul.Client) watchFunc { return c.WatchKey },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := consultest.StartProxy(t, consultest.Shared(t).Addr)
			c := clientOf(t, consul.Config{Address: p.Addr})
			w := startWatchWith(t, watch(c), prefix+"w/", consul.WatchOptions{Wait: wait})
			w.next(t)
			started, before := time.Now(), p.Seen()
			consultest.Eventually(t, patience, func() error {
				if asked := p.Seen() - before; asked < 2*periods {
					return fmt.Errorf("%d requests", asked)
				}
				return nil
			})
			if took := time.Since(started); took < (periods-1)*wait {
				t.Fatalf("%d requests of an idle watch in %s", 2*periods, took)
			}
			select {
			case s := <-w.snaps:
				t.Fatalf("an idle watch delivered %+v", s)
			default:
			}
		})
	}
}

func TestWatchGoesOnAfterErrors(t *testing.T) {
	t.Parallel()
	direct, _, prefix := setup(t)
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	w := startWatch(t, clientOf(t, consul.Config{Address: p.Addr}), prefix,
		consul.WatchOptions{Wait: 300 * time.Millisecond})
	put(t, direct, prefix+"k", "1")
	w.until(t, func(s consul.Snapshot) bool { return contents(s) == "k=1" })
	p.Set(consultest.Always(consultest.CutBefore))
	receive(t, w.errs)
	receive(t, w.errs)
	put(t, direct, prefix+"k", "2")
	p.Set(nil)
	if s := w.next(t); contents(s) != "k=2" || s.WentBack {
		t.Fatalf("after errors: %+v", s)
	}
	// The same pairs again, because the receiver may have lost its state.
	for len(w.errs) > 0 {
		<-w.errs
	}
	p.Set(consultest.Always(consultest.CutBefore))
	receive(t, w.errs)
	p.Set(nil)
	if s := w.next(t); contents(s) != "k=2" || s.WentBack {
		t.Fatalf("after errors: %+v", s)
	}
}

func TestWatchReturnsTheErrorOfItsReceiver(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	enough := errors.New("enough")
	err := c.WatchPrefix(t.Context(), prefix, consul.WatchOptions{}, func(consul.Snapshot) error { return enough })
	if !errors.Is(err, enough) {
		t.Fatalf("got %v", err)
	}
}

// Under heavy traffic, with answers in any order, a watch never reports WentBack, and it delivers the last state.
func TestWatchSeesNoRegressionWithoutARestore(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	p := consultest.StartProxy(t, consultest.Shared(t).Addr)
	w := startWatch(t, clientOf(t, consul.Config{Address: p.Addr}), prefix+"w/", consul.WatchOptions{})
	k := startWatchWith(t, clientOf(t, consul.Config{Address: p.Addr}).WatchKey, prefix+"w/key1", consul.WatchOptions{})
	var flaky int
	p.Set(func(*http.Request) consultest.Verdict {
		if flaky++; flaky%5 == 0 {
			return consultest.CutAfter
		}
		return consultest.Forward
	})
	var writers sync.WaitGroup
	for n := range 4 {
		writers.Go(func() {
			for i := range 400 {
				ops := []consul.Op{consul.Set(fmt.Sprintf("%sw/key%d", prefix, (n+i)%6),
					fmt.Appendf(nil, "%d-%d", n, i))}
				if i%3 == 0 { // sometimes the prefix is empty
					ops = nil
					for key := range 6 {
						ops = append(ops, consul.Delete(fmt.Sprintf("%sw/key%d", prefix, key)))
					}
				}
				if _, err := c.Commit(t.Context(), ops); err != nil {
					t.Error(err)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		writers.Wait()
		if _, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"w/key1", []byte("last"))}); err != nil {
			t.Error(err)
		}
	}()
	seen := 0
	for _, watch := range []*watcher{w, k} {
		watch.until(t, func(s consul.Snapshot) bool {
			seen++
			if s.WentBack {
				t.Errorf("a regression without a restore at index %d", s.Index)
			}
			return strings.Contains(contents(s), "key1=last")
		})
	}
	<-finished
	t.Logf("%d deliveries", seen)
}

// If the store went back in time, each next watch reports it until a receiver has acted on it. (With WatchOptions.Own,
// a lock that was deleted and taken again looks like a lock of an older store.)
func TestAReturnInTimeIsReportedUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key, first, second := prefix+"lock", rawSession(t, raw, nil), rawSession(t, raw, nil)
	lock := func(session string) {
		t.Helper()
		must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Lock(key, []byte(session), session)}))
	}
	enough := errors.New("enough")
	look := func(released bool, answer error) (wentBack bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := c.WatchPrefix(ctx, prefix, consul.WatchOptions{Released: released, Own: released},
			func(s consul.Snapshot) error {
				wentBack = s.WentBack
				return answer
			})
		if !errors.Is(err, answer) {
			t.Fatal(err)
		}
		return wentBack
	}
	lock(first)
	if look(true, enough) {
		t.Error("the first look is a return in time")
	}
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Delete(key)}))
	if look(true, enough) {
		t.Error("a deletion is a return in time")
	}
	lock(second)
	if !look(true, errors.Join(consul.ErrWentBack, consul.ErrUnanswered)) || !look(true, consul.ErrWentBack) {
		t.Error("a lock that was taken in an older store was missed, or not reported again")
	}
	if look(true, enough) {
		t.Error("a return in time that the receiver accepted is reported again")
	}
	// This lock is compared only with the present history.
	lock(second)
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Unlock(key, nil, second)}))
	lock(first)
	if look(true, enough) {
		t.Error("a lock is compared with that of a history which is over")
	}
}

// An operator may remove the lock of a machine that is gone, and the next one makes it again. This does not mean that
// the store went back, even if the watch has not polled in between.
func TestAKeyMadeAgainIsNoReturnInTime(t *testing.T) {
	t.Parallel()
	for _, looked := range []bool{false, true} {
		c, raw, prefix := setup(t)
		key := prefix + "lock"
		w := startWatch(t, c, prefix, consul.WatchOptions{Released: true})
		lock := func() {
			t.Helper()
			session := rawSession(t, raw, nil)
			must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Lock(key, []byte(session), session)}))
			w.until(t, func(s consul.Snapshot) bool {
				if s.WentBack {
					t.Fatalf("looked %v: a return in time at index %d", looked, s.Index)
				}
				return strings.Contains(contents(s), session)
			})
		}
		release := func() {
			t.Helper()
			held := get(t, c, key)
			must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Unlock(key, held.Value, held.Session)}))
		}
		for range 3 { // the count of the lock's sessions begins again after the deletion
			lock()
			release()
		}
		drop(t, c, key)
		if looked {
			w.until(t, func(s consul.Snapshot) bool { return len(s.Pairs) == 0 })
		}
		for range 5 {
			lock()
			release()
		}
		w.stop()
	}
}
