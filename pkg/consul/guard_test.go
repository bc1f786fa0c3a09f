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

// indexGuard has the condition that a key is unchanged, like the guard of package store.
type indexGuard struct {
	client *consul.Client
	key    string

	mu      sync.Mutex
	index   uint64 // zero: the index must be read
	never   bool   // the condition never holds
	refusal error  // the error for operations that need "refused"
	refused []consul.Failure
}

func (i *indexGuard) Condition(ctx context.Context, ops []consul.Op) (consul.Op, bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if slices.ContainsFunc(ops, func(op consul.Op) bool { return op.Need() == "refused" }) {
		return consul.Op{}, false, i.refusal
	}
	if slices.ContainsFunc(ops, func(op consul.Op) bool { return op.Need() == "free" }) {
		return consul.Op{}, false, nil
	}
	if i.index == 0 {
		pair, err := i.client.Get(ctx, i.key, consul.Consistent)
		if err != nil {
			return consul.Op{}, false, consul.Unsent(err)
		}
		i.index = pair.ModifyIndex
	}
	if i.never {
		return consul.CheckIndex(i.key, 1), true, nil
	}
	return consul.CheckIndex(i.key, i.index), true, nil
}

func (i *indexGuard) Refused(f consul.Failure) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.index, i.refused = 0, append(i.refused, f)
}

func (i *indexGuard) seen() []consul.Failure {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.refused)
}

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
	if written := write("the first", consul.Set(prefix+"a", []byte("1"))); written[prefix+"a"] == 0 ||
		len(written) != 1 {
		t.Errorf("%v was written", written)
	}
	if len(g.seen()) != 0 {
		t.Error("the condition was refused that had just been read")
	}
	put(t, free, prefix+"gate", "2") // the next write shows this to the guard, and lands
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
	if _, err := c.Commit(t.Context(),
		[]consul.Op{consul.Set(prefix+"a", nil), consul.Set(prefix+"b", nil).Needs("refused")}); !errors.Is(err,
		g.refusal) || errors.Is(err, consul.ErrUnknown) {
		t.Errorf("%v, want %v", err, g.refusal)
	}
	// The error has the positions of the caller's operations.
	_, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"a", nil), consul.CheckIndex(prefix+"none", 7)})
	refused, is := errors.AsType[*consul.RefusedError](err)
	if !is || len(refused.Failures) != 1 || refused.Failures[0].Op != 1 || refused.Failures[0].Key != prefix+"none" {
		t.Errorf("%v", err)
	}
	if len(g.seen()) != 0 {
		t.Error("the guard heard of a refusal that is not its own")
	}
	// Both fail: first the guard's condition, and after another try the transaction's own.
	put(t, free, prefix+"gate", "2")
	if _, err := c.Commit(t.Context(),
		[]consul.Op{consul.CheckIndex(prefix+"none", 7), consul.Set(prefix+"a", nil)}); !consul.RefusedOnly(err,
		prefix+"none") {
		t.Errorf("%v", err)
	}
	g.mu.Lock()
	g.never = true
	g.mu.Unlock()
	if _, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"a", nil)}); !errors.Is(err, consul.ErrUnsent) ||
		errors.Is(err, consul.ErrRefused) {
		t.Errorf("a condition that never holds: %v, want not sent", err)
	}
	if keys := must[[]string](t)(free.Keys(t.Context(), prefix)); len(keys) != 1 {
		t.Errorf("%v was written", keys)
	}
}

// Merged transactions have the guard's condition once. A lock with a read is also taken under this condition.
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
	f, found, _, err := m.AcquireReading(t.Context(), prefix+"lock", session, func() []byte { return []byte("v") },
		consul.Reading{Keys: []string{prefix + "gate", prefix + "none"}})
	if err != nil || f.Index == 0 || string(found[prefix+"gate"].Value) != "3" || len(found) != 1 {
		t.Errorf("%+v, %v, %v", f, found, err)
	}
	if len(g.seen()) == 0 {
		t.Error("the gate has not moved")
	}
}
