package consul_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// gate counts transactions to Consul, and holds them until it is opened.
type gate struct {
	cut    atomic.Bool            // answer no request
	bad    atomic.Pointer[string] // do not answer transactions that contain this text
	passed atomic.Int32

	mu   sync.Mutex
	open chan struct{}
}

// wait also returns when the client has left, because a closing server waits for its handlers.
func (g *gate) wait(ctx context.Context) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
	case <-ctx.Done():
	}
}

func (g *gate) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
	g.passed.Store(0)
}

func merging(t *testing.T) (m *consul.Merger, c *consul.Client, g *gate, prefix string) {
	t.Helper()
	direct, prefix := consultest.Client(t)
	g = &gate{open: make(chan struct{})}
	back := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: consultest.Shared(t).Addr})
	back.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	transport := &http.Transport{}
	back.Transport = transport
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/txn" {
			g.passed.Add(1)
			// The server notices that a client has left only after the body.
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			g.wait(r.Context())
			if bad := g.bad.Load(); bad != nil && bytes.Contains(body, []byte(*bad)) {
				panic(http.ErrAbortHandler)
			}
		}
		if g.cut.Load() {
			panic(http.ErrAbortHandler)
		}
		back.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); transport.CloseIdleConnections() })
	through := clientOf(t, consul.Config{Address: srv.Listener.Addr().String(), CallTimeout: patience})
	return through.NewMerger(), direct, g, prefix
}

// rush makes n calls, and opens the gate when underWay transactions have reached it and all other calls wait.
func (g *gate) rush(t *testing.T, m *consul.Merger, n, underWay int, call func(i int)) {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { call(i) })
	}
	consultest.Eventually(t, patience, func() error {
		if waiting, passed := m.Waiting(), g.passed.Load(); waiting != n-underWay || passed != int32(underWay) {
			return fmt.Errorf("%d under way, %d waiting", passed, waiting)
		}
		return nil
	})
	close(g.open)
	all.Wait()
}

// Transactions share requests. Each caller gets only its own indices, or its own refusals.
func TestMergedWrites(t *testing.T) {
	t.Parallel()
	m, c, g, prefix := merging(t)
	const n = 20
	var written [n]map[string]uint64
	var errs [n]error
	bad := func(i int) bool { return i%7 == 3 }
	g.rush(t, m, n, consul.MergedWrites, func(i int) {
		ops := []consul.Op{consul.CAS(fmt.Sprint(prefix, i), fmt.Append(nil, i), 0)}
		if bad(i) {
			ops = append(ops, consul.CheckIndex(fmt.Sprint(prefix, "missing", i), 5))
		}
		written[i], errs[i] = m.Commit(t.Context(), ops)
	})
	// These were sent: the first transactions, one with all other parts, and one with these parts without the refused
	// ones.
	if sent := g.passed.Load(); sent > consul.MergedWrites+2 {
		t.Errorf("%d transactions for %d callers", sent, n)
	}
	for i := range n {
		key := fmt.Sprint(prefix, i)
		pair, err := c.Get(t.Context(), key, consul.Consistent)
		switch {
		case bad(i):
			mustRefuse(t, errs[i], 1)
			if !errors.Is(err, consul.ErrNotFound) || !consul.RefusedOn(errs[i], fmt.Sprint(prefix, "missing", i)) {
				t.Errorf("call %d: %v, then %v", i, errs[i], err)
			}
		case errs[i] != nil || err != nil:
			t.Errorf("call %d: %v, then %v", i, errs[i], err)
		case string(pair.Value) != fmt.Sprint(i) || len(written[i]) != 1 || written[i][key] != pair.ModifyIndex:
			t.Errorf("call %d: wrote %v, found %+v", i, written[i], pair)
		}
	}
}

// Writes of one key are not merged, because their outcomes could not be distinguished.
func TestWritesOfOneKeyAreNotMerged(t *testing.T) {
	t.Parallel()
	m, _, g, prefix := merging(t)
	const n = 6
	var errs [n]error
	g.rush(t, m, n, consul.MergedWrites, func(i int) {
		_, errs[i] = m.Commit(t.Context(), []consul.Op{consul.CAS(prefix+"one", fmt.Append(nil, i), 0)})
	})
	landed := 0
	for _, err := range errs {
		if err == nil {
			landed++
		} else if !errors.Is(err, consul.ErrRefused) {
			t.Error(err)
		}
	}
	if landed != 1 || g.passed.Load() != n {
		t.Errorf("%d landed, with %d transactions; want 1 with %d", landed, g.passed.Load(), n)
	}
}

// If a merged transaction gets no answer, all its callers get an unknown outcome, and for a while each transaction is
// sent alone. So one that Consul cannot handle does not harm others.
func TestMergedWritesOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	m, c, g, prefix := merging(t)
	g.cut.Store(true)
	const n = 8
	var errs [n]error
	write := func(i int) {
		ops := []consul.Op{consul.Set(fmt.Sprint(prefix, i), nil)}
		_, errs[i] = m.Commit(t.Context(), ops)
	}
	g.rush(t, m, n, consul.MergedWrites, write)
	for i, err := range errs {
		if !errors.Is(err, consul.ErrUnknown) || errors.Is(err, consul.ErrRefused) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	g.cut.Store(false)
	g.reset()
	g.rush(t, m, n, consul.MergedWrites, write)
	if err := errors.Join(errs[:]...); err != nil || g.passed.Load() != n {
		t.Errorf("%d transactions for %d callers: %v", g.passed.Load(), n, err)
	}
	if keys := must[[]string](t)(c.Keys(t.Context(), prefix)); len(keys) != n {
		t.Errorf("%d of %d keys were written", len(keys), n)
	}
}

// A caller that gives up while its transaction waits gets an unknown outcome, and the transaction is not sent.
func TestMergedWriteOfACallerThatLeft(t *testing.T) {
	t.Parallel()
	m, c, g, prefix := merging(t)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	var others sync.WaitGroup
	for i := range consul.MergedWrites {
		others.Go(func() {
			if _, err := m.Commit(t.Context(), []consul.Op{consul.Set(fmt.Sprint(prefix, i), nil)}); err != nil {
				t.Error(err)
			}
		})
	}
	consultest.Eventually(t, patience, func() error {
		if n := g.passed.Load(); n != consul.MergedWrites {
			return fmt.Errorf("%d under way", n)
		}
		return nil
	})
	go func() {
		_, err := m.Commit(ctx, []consul.Op{consul.Set(prefix+"left", nil)})
		left <- err
	}()
	consultest.Eventually(t, patience, func() error {
		if m.Waiting() != 1 {
			return errors.New("it does not wait")
		}
		return nil
	})
	leave()
	if err := <-left; !errors.Is(err, consul.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(g.open)
	others.Wait()
	if keys := must[[]string](t)(c.Keys(t.Context(), prefix)); len(keys) != consul.MergedWrites {
		t.Errorf("keys %v", keys)
	}
}

// Merged acquisitions take all free locks, each with its read, even if some locks are taken.
func TestMergedAcquisitions(t *testing.T) {
	t.Parallel()
	m, c, g, prefix := merging(t)
	raw := rawAPI(t, consultest.Shared(t).Addr, "")
	ours, theirs := rawSession(t, raw, nil), rawSession(t, raw, nil)
	const n, held = 12, 7
	for i := range n {
		put(t, c, fmt.Sprint(prefix, "record/", i), fmt.Sprint(i))
		put(t, c, fmt.Sprint(prefix, "below/", i, "/a"), fmt.Sprint(i))
	}
	must[consul.Fence](t)(c.Locks.Acquire(t.Context(), fmt.Sprint(prefix, "lock/", held), theirs, differ("x")))
	var errs [n]error
	g.rush(t, m, n, consul.MergedWrites, func(i int) {
		r := consul.Reading{
			Keys:     []string{fmt.Sprint(prefix, "record/", i)},
			Prefixes: []string{fmt.Sprint(prefix, "below/", i, "/")},
		}
		f, found, below, err := m.AcquireReading(t.Context(), fmt.Sprint(prefix, "lock/", i), ours, differ("v"), r)
		errs[i] = err
		if err != nil {
			return
		}
		if len(found) != 1 || string(found[r.Keys[0]].Value) != fmt.Sprint(i) || len(below) != 1 ||
			string(below[0].Value) != fmt.Sprint(i) {
			t.Errorf("lock %d came with %v and %v", i, found, below)
		}
		if _, err := c.Commit(t.Context(),
			append(f.Ops(), consul.Set(fmt.Sprint(prefix, "done/", i), nil))); err != nil {
			t.Errorf("fence %d does not hold: %v", i, err)
		}
	})
	for i, err := range errs {
		var other *consul.LockedError
		if want := i == held; errors.As(err, &other) != want || !want && err != nil {
			t.Errorf("lock %d: %v", i, err)
		}
	}
	if sent := g.passed.Load(); sent > consul.MergedWrites+3 {
		t.Errorf("%d transactions for %d locks", sent, n)
	}
}

// Reads share transactions. A read that needs several gets all of its keys.
func TestMergedReads(t *testing.T) {
	t.Parallel()
	m, c, g, prefix := merging(t)
	const n = 16
	for i := range n {
		put(t, c, fmt.Sprint(prefix, i), fmt.Sprint(i))
		put(t, c, fmt.Sprintf("%s%d/a", prefix, i), "a")
		put(t, c, fmt.Sprintf("%s%d/b", prefix, i), "b")
	}
	g.rush(t, m, n, consul.MergedReads, func(i int) {
		r := consul.Reading{
			Keys:     []string{fmt.Sprint(prefix, i), fmt.Sprint(prefix, "missing", i)},
			Prefixes: []string{fmt.Sprintf("%s%d/", prefix, i)},
		}
		found, below, err := m.Read(t.Context(), r, consul.Default)
		if err != nil || len(found) != 1 || string(found[r.Keys[0]].Value) != fmt.Sprint(i) ||
			len(below) != 2 || string(below[0].Value) != "a" || string(below[1].Value) != "b" {
			t.Errorf("read %d: %v, %v, %v", i, found, below, err)
		}
	})
	if sent := g.passed.Load(); sent != consul.MergedReads+1 {
		t.Errorf("%d transactions for %d reads", sent, n)
	}
	var keys []string
	for i := range 3 * consul.MaxTxnOps {
		keys = append(keys, fmt.Sprint(prefix, i))
	}
	found, _, err := m.Read(t.Context(), consul.Reading{Keys: keys}, consul.Consistent)
	if err != nil || len(found) != n {
		t.Errorf("found %d of %d: %v", len(found), n, err)
	}
	if found, below, err := m.Read(t.Context(), consul.Reading{}, consul.Default); err != nil ||
		len(found)+len(below) != 0 {
		t.Errorf("nothing: %v, %v, %v", found, below, err)
	}
}

// Callers that share a request for overlapping keys and prefixes each get every pair once, in order.
func TestMergedReadsOfTheSame(t *testing.T) {
	t.Parallel()
	m, c, g, prefix := merging(t)
	for _, name := range []string{"a/", "a/1", "a/2", "a/b/", "a/b/3", "a/b/4", "c"} {
		put(t, c, prefix+name, name)
	}
	for name, tt := range map[string]struct {
		reading     func(i int) consul.Reading
		below, rest string // what the callers with an even number find, and what the others find
	}{
		"a prefix": {
			func(int) consul.Reading { return consul.Reading{Prefixes: []string{"a/"}} },
			"a/1 a/2 a/b/ a/b/3 a/b/4", "a/1 a/2 a/b/ a/b/3 a/b/4",
		},
		"a prefix and what is below it": {
			func(i int) consul.Reading { return consul.Reading{Prefixes: []string{[]string{"a/", "a/b/"}[i%2]}} },
			"a/1 a/2 a/b/ a/b/3 a/b/4", "a/b/3 a/b/4",
		},
		"both in one": {
			func(int) consul.Reading { return consul.Reading{Prefixes: []string{"a/b/", "a/"}} },
			"a/b/3 a/b/4 a/1 a/2 a/b/", "a/b/3 a/b/4 a/1 a/2 a/b/",
		},
		"keys below it, too": {
			func(i int) consul.Reading {
				r := consul.Reading{Keys: []string{"a/b/4", "a/2", "c"}}
				if i%2 == 0 {
					r.Prefixes = []string{"a/"}
				}
				return r
			},
			"a/1 a/2 a/b/ a/b/3 a/b/4", "",
		},
	} {
		g.reset()
		const n = 16
		g.rush(t, m, n, consul.MergedReads, func(i int) {
			r := tt.reading(i)
			for j := range r.Keys {
				r.Keys[j] = prefix + r.Keys[j]
			}
			for j := range r.Prefixes {
				r.Prefixes[j] = prefix + r.Prefixes[j]
			}
			found, below, err := m.Read(t.Context(), r, consul.Default)
			want := tt.below
			if i%2 == 1 {
				want = tt.rest
			}
			var got []string
			for _, p := range below {
				got = append(got, strings.TrimPrefix(p.Key, prefix))
				if prefix+string(p.Value) != p.Key {
					t.Errorf("%s: read %d: %s is %q", name, i, p.Key, p.Value)
				}
			}
			if err != nil || strings.Join(got, " ") != want || len(found) != len(r.Keys) {
				t.Errorf("%s: read %d: %d keys and %q, %v; want %d and %q", name, i, len(found), got, err,
					len(r.Keys), want)
			}
		})
	}
}
