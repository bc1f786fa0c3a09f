package consul_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// A failing read spoils no others: reads that shared its request are repeated alone, and later reads are not merged
// with it.
func TestAReadThatFailsSpoilsNoOthers(t *testing.T) {
	t.Parallel()
	m, c, g, prefix := merging(t)
	var again atomic.Int32
	m.OnFailure = func(kind string, parts int) {
		if kind != consul.FailedReads {
			t.Errorf("%d %s", parts, kind)
		}
		again.Add(int32(parts))
	}
	const n, bad = 24, 9
	for i := range n {
		put(t, c, fmt.Sprintf("%s%02d", prefix, i), fmt.Sprint(i))
	}
	key := fmt.Sprintf("%s%02d", prefix, bad)
	g.bad.Store(&key)
	read := func(i int) {
		key := fmt.Sprintf("%s%02d", prefix, i)
		found, _, err := m.Read(t.Context(), consul.Reading{Keys: []string{key}}, consul.Default)
		if i == bad && err == nil || i != bad && (err != nil || string(found[key].Value) != fmt.Sprint(i)) {
			t.Errorf("read %d: %v, %v", i, found, err)
		}
	}
	g.rush(t, m, n, consul.MergedReads, read)
	// The failing read may have been among the first, which share no request.
	if got := again.Load(); got > n-consul.MergedReads {
		t.Errorf("%d reads were done again", got)
	}
	again.Store(0)
	for range 3 {
		g.reset()
		g.rush(t, m, n, consul.MergedReads, read)
	}
	if got := again.Load(); got > n-consul.MergedReads {
		t.Errorf("then %d more", got)
	}
}

// Few writes become unknown because of others: a transaction has at most MergedParts parts, and after one without an
// answer, writes are not merged for a while.
func TestFewWritesBecomeUnknownTogether(t *testing.T) {
	t.Parallel()
	m, _, g, prefix := merging(t)
	var unknown, requests atomic.Int32
	m.OnFailure = func(kind string, parts int) {
		if kind != consul.FailedWrites || parts > consul.MergedParts {
			t.Errorf("%d %s", parts, kind)
		}
		unknown.Add(int32(parts))
		requests.Add(1)
	}
	g.cut.Store(true)
	const n = 100
	var errs [n]error
	g.rush(t, m, n, consul.MergedWrites, func(i int) {
		_, errs[i] = m.Commit(t.Context(), []consul.Op{consul.Set(fmt.Sprint(prefix, i), nil)})
	})
	for i, err := range errs {
		if !errors.Is(err, consul.ErrUnknown) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if got, most := unknown.Load(), int32(consul.MergedWrites*consul.MergedParts); got == 0 || got > most ||
		requests.Load() > consul.MergedWrites {
		t.Errorf("%d writes became unknown together, in %d transactions; at most %d in %d", got, requests.Load(), most,
			consul.MergedWrites)
	}
}
