package consul_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// indexGuard demands that a key is as it was read, as the store's does.
type indexGuard struct {
	client *consul.Client
	key    string

	mu      sync.Mutex
	index   uint64 // zero: to be read
	never   bool   // the condition never holds
	refusal error  // of all transactions
	refused []consul.Failure
}

func (g *indexGuard) Condition(ctx context.Context, ops []consul.Op) (consul.Op, bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.ContainsFunc(ops, func(op consul.Op) bool { return op.Need() == "refused" }) {
		return consul.Op{}, false, g.refusal
	}
	if slices.ContainsFunc(ops, func(op consul.Op) bool { return op.Need() == "free" }) {
		return consul.Op{}, false, nil
	}
	if g.index == 0 {
		pair, err := g.client.Get(ctx, g.key, consul.Consistent)
		if err != nil {
			return consul.Op{}, false, consul.Unsent(err)
		}
		g.index = pair.ModifyIndex
	}
	if g.never {
		return consul.CheckIndex(g.key, 1), true, nil
	}
	return consul.CheckIndex(g.key, g.index), true, nil
}

func (g *indexGuard) Refused(f consul.Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.index, g.refused = 0, append(g.refused, f)
}

func (g *indexGuard) seen() []consul.Failure {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.refused)
}

// underGuard returns a client with a guard below a prefix, and another one without.
func underGuard(t *testing.T) (c, free *consul.Client, g *indexGuard, prefix string) {
	t.Helper()
	c, _, prefix = setup(t)
	free, _, _ = setup(t)
	put(t, free, prefix+"gate", "1")
	g = &indexGuard{client: c, key: prefix + "gate", refusal: errors.New("not now")}
	if got := c.Guard(prefix, func() consul.Guard { return g }); got != consul.Guard(g) {
		t.Fatal("another guard is there")
	}
	if got := c.Guard(prefix, func() consul.Guard { return &indexGuard{} }); got != consul.Guard(g) {
		t.Fatal("a second guard took the place of the first")
	}
	return c, free, g, prefix
}

func TestGuardedTransactions(t *testing.T) {
	t.Parallel()
	c, free, g, prefix := underGuard(t)
	write := func(what string, ops ...consul.Op) map[string]uint64 {
		t.Helper()
		written, err := c.Commit(t.Context(), ops)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return written
	}
	if written := write("the first", consul.Set(prefix+"a", []byte("1"))); written[prefix+"a"] == 0 || len(written) != 1 {
		t.Errorf("%v was written", written)
	}
	if len(g.seen()) != 0 {
		t.Error("the condition was refused that had just been read")
	}
	put(t, free, prefix+"gate", "2") // the guard finds out with the next write, which lands all the same
	write("after the gate has moved", consul.CAS(prefix+"b", []byte("1"), 0))
	if seen := g.seen(); len(seen) != 1 || seen[0].Key != prefix+"gate" || seen[0].Op != 0 {
		t.Errorf("%v was refused", seen)
	}
	put(t, free, prefix+"gate", "3")
	write("the gate itself, by its index", consul.Set(prefix+"gate", []byte("4")), consul.Set(prefix+"c", nil))
	write("all at once", consul.DeleteTree(prefix))
	if _, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"d", nil)}); !errors.Is(err, consul.ErrUnsent) {
		t.Errorf("without a gate: %v, want not sent", err)
	}
	write("what is below no guarded prefix", consul.Set("elsewhere/"+prefix+"a", nil))
	write("what depends on nothing", consul.Set(prefix+"e", nil).Needs("free"))
}

func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	c, free, g, prefix := underGuard(t)
	if _, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"a", nil), consul.Set(prefix+"b", nil).Needs("refused")}); !errors.Is(err, g.refusal) || errors.Is(err, consul.ErrUnknown) {
		t.Errorf("%v, want %v", err, g.refusal)
	}
	// Who is refused for a reason of its own is told its own operations.
	_, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"a", nil), consul.CheckIndex(prefix+"none", 7)})
	refused, is := errors.AsType[*consul.RefusedError](err)
	if !is || len(refused.Failures) != 1 || refused.Failures[0].Op != 1 || refused.Failures[0].Key != prefix+"none" {
		t.Errorf("%v", err)
	}
	if len(g.seen()) != 0 {
		t.Error("the guard heard of a refusal that is not its own")
	}
	put(t, free, prefix+"gate", "2") // both at once: the guard comes first, and then the transaction is refused by itself
	if _, err := c.Commit(t.Context(), []consul.Op{consul.CheckIndex(prefix+"none", 7), consul.Set(prefix+"a", nil)}); !consul.RefusedOnly(err, prefix+"none") {
		t.Errorf("%v", err)
	}
	g.mu.Lock()
	g.never = true
	g.mu.Unlock()
	if _, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"a", nil)}); !errors.Is(err, consul.ErrUnsent) || errors.Is(err, consul.ErrRefused) {
		t.Errorf("a condition that never holds: %v, want not sent", err)
	}
	if keys := must[[]string](t)(free.Keys(t.Context(), prefix)); len(keys) != 1 {
		t.Errorf("%v was written", keys)
	}
}

// Transactions that are sent together bear the condition once, and a lock is taken under it with what is read at that moment.
func TestGuardedMerger(t *testing.T) {
	t.Parallel()
	c, free, g, prefix := underGuard(t)
	m := c.NewMerger()
	var all sync.WaitGroup
	errs := make([]error, 40)
	for i := range errs {
		if i == len(errs)/2 {
			put(t, free, prefix+"gate", "2")
		}
		all.Go(func() { _, errs[i] = m.Commit(t.Context(), []consul.Op{consul.Set(fmt.Sprint(prefix, i), nil)}) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	full := make([]consul.Op, consul.MaxTxnOps)
	for i := range full {
		full[i] = consul.Set(fmt.Sprint(prefix, "full/", i), nil)
	}
	if _, err := m.Commit(t.Context(), full); err != nil {
		t.Errorf("as many operations as are allowed: %v", err)
	}
	session := rawSession(t, rawAPI(t, consultest.Shared(t).Addr, ""), nil)
	put(t, free, prefix+"gate", "3")
	f, found, _, err := m.AcquireReading(t.Context(), prefix+"lock", session, func() []byte { return []byte("v") }, consul.Reading{Keys: []string{prefix + "gate", prefix + "none"}})
	if err != nil || f.Index == 0 || string(found[prefix+"gate"].Value) != "3" || len(found) != 1 {
		t.Errorf("%+v, %v, %v", f, found, err)
	}
	if len(g.seen()) == 0 {
		t.Error("the gate has not moved")
	}
}
