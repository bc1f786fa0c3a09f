package consul_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

func throughProxy(t *testing.T) (spoilt, direct *consul.Client, p *consultest.Proxy, prefix string) {
	t.Helper()
	direct, prefix = consultest.Client(t)
	p = consultest.StartProxy(t, consultest.Shared(t).Addr)
	spoilt = clientOf(t, consul.Config{Address: p.Addr, CallTimeout: 10 * time.Second}) // a stalled call lasts so long
	return spoilt, direct, p, prefix
}

func TestCommitDone(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	written := must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{
		consul.CAS(prefix+"a", []byte("1"), 0), consul.SetFlags(prefix+"b", []byte("2"),
			7), consul.CheckMissing(prefix + "c"),
	}))
	a, b := get(t, c, prefix+"a"), get(t, c, prefix+"b")
	if written[prefix+"a"] != a.ModifyIndex || written[prefix+"b"] != b.ModifyIndex || a.ModifyIndex != b.ModifyIndex {
		t.Errorf("written %v, read %d and %d", written, a.ModifyIndex, b.ModifyIndex)
	}
	if string(a.Value) != "1" || string(b.Value) != "2" || b.Flags != 7 {
		t.Errorf("read %+v and %+v", a, b)
	}
}

func TestCommitRefusedWritesNothing(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	_, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"a", nil), consul.CheckIndex(prefix+"b", 3)})
	mustRefuse(t, err, 1)
	if errors.Is(err, consul.ErrUnknown) {
		t.Error("a refusal is also unknown")
	}
	if keys := must[[]string](t)(c.Keys(t.Context(), prefix)); len(keys) != 0 {
		t.Errorf("it wrote %v", keys)
	}
}

// A transaction without an answer has an unknown outcome: the caller cannot know that only the first of these lands.
func TestCommitUnknown(t *testing.T) {
	t.Parallel()
	spoilt, direct, p, prefix := throughProxy(t)
	for name, tc := range map[string]struct {
		v     consultest.Verdict
		lands bool
	}{
		"landed": {consultest.CutAfter, true}, "cut": {consultest.CutBefore, false},
		"timeout": {consultest.Stall, false},
	} {
		key := prefix + name
		p.Set(consultest.Always(tc.v))
		_, err := spoilt.Commit(t.Context(), []consul.Op{consul.Set(key, nil)})
		if !errors.Is(err, consul.ErrUnknown) || errors.Is(err, consul.ErrRefused) || errors.Is(err, consul.ErrUnsent) {
			t.Errorf("%s: %v, want unknown", name, err)
		}
		_, err = direct.Get(t.Context(), key, consul.Consistent)
		if landed := err == nil; landed != tc.lands {
			t.Errorf("%s: landed=%v (%v)", name, landed, err)
		}
	}
	p.Set(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := spoilt.Commit(ctx, []consul.Op{consul.Set(prefix+"left", nil)}); !errors.Is(err, consul.ErrUnknown) ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left: %v", err)
	}
}

// A transaction that never had a connection was not sent. Its error is ErrUnsent and ErrUnknown.
func TestCommitUnsent(t *testing.T) {
	t.Parallel()
	direct, _, prefix := setup(t)
	ops := []consul.Op{consul.Set(prefix+"k", nil)}
	left, leave := context.WithCancel(t.Context())
	leave()
	_, errLeft := direct.Commit(left, ops)
	nobody := must[net.Listener](t)(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	away := clientOf(t, consul.Config{Address: nobody.Addr().String()})
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	_, errAway := away.Commit(t.Context(), ops)
	for _, err := range []error{errLeft, errAway} {
		if !errors.Is(err, consul.ErrUnsent) || !errors.Is(err, consul.ErrUnknown) {
			t.Errorf("%v, want not sent", err)
		}
	}
	if !errors.Is(errLeft, context.Canceled) {
		t.Errorf("a caller that left: %v", errLeft)
	}
	if keys := must[[]string](t)(direct.Keys(t.Context(), prefix)); len(keys) != 0 {
		t.Errorf("it wrote %v", keys)
	}
}

func TestCommitTooLargeIsNotSent(t *testing.T) {
	t.Parallel()
	spoilt, _, p, prefix := throughProxy(t)
	many := make([]consul.Op, consul.MaxTxnOps+1)
	for i := range many {
		many[i] = consul.Set(fmt.Sprint(prefix, i), nil)
	}
	for _, ops := range [][]consul.Op{many, {consul.Set(prefix+"big", make([]byte, consul.MaxTxnBytes*3/4))}} {
		_, err := spoilt.Commit(t.Context(), ops)
		if !errors.Is(err, consul.ErrTooLarge) || errors.Is(err, consul.ErrUnknown) {
			t.Errorf("%d operations: %v", len(ops), err)
		}
	}
	if p.Seen() != 0 {
		t.Error("it was sent")
	}
	must[map[string]uint64](t)(spoilt.Commit(t.Context(), many[:consul.MaxTxnOps]))
	full := consul.Set(prefix+"full", nil)
	fits := (consul.MaxTxnBytes - full.Bytes() - 16) / 4 * 3
	must[map[string]uint64](t)(spoilt.Commit(t.Context(), []consul.Op{consul.Set(prefix+"full", make([]byte, fits))}))
}

func TestGetManyReadsMoreThanOneTransactionHolds(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	var keys []string
	for i := range 2*consul.MaxTxnOps + 3 {
		keys = append(keys, fmt.Sprintf("%s%03d", prefix, i))
	}
	for i, key := range keys {
		if i%50 == 0 {
			put(t, c, key, fmt.Sprint(i))
		}
	}
	found := must[map[string]consul.Pair](t)(c.GetMany(t.Context(), keys, consul.Consistent))
	for i, key := range keys {
		pair, exists := found[key]
		if exists != (i%50 == 0) || exists &&
			(string(pair.Value) != fmt.Sprint(i) || pair.ModifyIndex == 0 || pair.Key != key) {
			t.Errorf("key %d: %v %+v", i, exists, pair)
		}
	}
	if none := must[map[string]consul.Pair](t)(c.GetMany(t.Context(), nil, consul.Default)); len(none) != 0 {
		t.Errorf("nothing asked, got %v", none)
	}
}

// A key of a reading that is also one of its prefixes is a key in the answer, if it exists, and not below the prefix.
func TestReadAKeyThatIsAPrefix(t *testing.T) {
	t.Parallel()
	c, prefix := consultest.Client(t)
	for _, name := range []string{"u", "u/trouble", "u-1", "v/trouble", "w"} {
		put(t, c, prefix+name, name)
	}
	keys := []string{prefix + "u", prefix + "v", prefix + "w"}
	r := consul.Reading{Keys: keys, Prefixes: keys[:2]}
	m := c.NewMerger()
	for name, read := range map[string]func() (map[string]consul.Pair, []consul.Pair, error){
		"alone": func() (map[string]consul.Pair, []consul.Pair, error) {
			return c.Read(t.Context(), r, consul.Consistent)
		},
		"merged": func() (map[string]consul.Pair, []consul.Pair, error) {
			return m.Read(t.Context(), r, consul.Consistent)
		},
	} {
		found, below, err := read()
		if err != nil || len(found) != 2 || string(found[keys[0]].Value) != "u" || string(found[keys[2]].Value) != "w" {
			t.Errorf("%s: found %v, %v", name, found, err)
		}
		var got []string
		for _, p := range below {
			got = append(got, string(p.Value))
		}
		if want := []string{"u-1", "u/trouble", "v/trouble"}; !slices.Equal(got, want) {
			t.Errorf("%s: below are %v, want %v", name, got, want)
		}
	}
}
