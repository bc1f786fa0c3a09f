package consul_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// A delayed write with a fence must not land after the fence was bumped.
func TestBumpFencesOffALateWrite(t *testing.T) {
	t.Parallel()
	spoilt, direct, p, prefix := throughProxy(t)
	session := rawSession(t, rawAPI(t, consultest.Shared(t).Addr, ""), nil)
	value := differ("v")
	f := must[consul.Fence](t)(spoilt.Locks.Acquire(t.Context(), prefix+"lock", session, value))
	p.Set(consultest.OnTxn(consultest.Delay))
	_, err := spoilt.Commit(t.Context(), append(f.Ops(), consul.Set(prefix+"late", nil)))
	if !errors.Is(err, consul.ErrUnknown) {
		t.Fatalf("the write that is held back: %v", err)
	}
	next := must[consul.Fence](t)(spoilt.Locks.Bump(t.Context(), f, value))
	p.Release(t)
	if _, err := direct.Get(t.Context(), prefix+"late", consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
		t.Fatalf("the late write landed: %v", err)
	}
	must[map[string]uint64](t)(spoilt.Commit(t.Context(), append(next.Ops(), consul.Set(prefix+"new", nil))))
}

func TestAcquireHeldAndFree(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key, mine, other := prefix+"lock", rawSession(t, raw, nil), rawSession(t, raw, nil)
	f := must[consul.Fence](t)(c.Locks.Acquire(t.Context(), key, mine, func() []byte { return []byte("mine") }))
	if got := get(t, c, key); f != (consul.Fence{Key: key, Session: mine, Index: got.ModifyIndex}) ||
		got.Session != mine {
		t.Fatalf("fence %+v, key %+v", f, got)
	}
	_, err := c.Locks.Acquire(t.Context(), key, other, differ("other"))
	var held *consul.LockedError
	if !errors.As(err, &held) || held.Key != key || held.Session != mine || string(held.Value) != "mine" ||
		errors.Is(err, consul.ErrLost) {
		t.Fatalf("got %v, want LockedError", err)
	}
	if err := c.Locks.Release(t.Context(), consul.Fence{Key: key, Session: other}, nil); !errors.Is(err,
		consul.ErrRefused) {
		t.Fatalf("release by another: %v", err)
	}
	if err := c.Locks.Release(t.Context(), f, []byte("bye")); err != nil {
		t.Fatal(err)
	}
	if err := c.Locks.Release(t.Context(), f, nil); !errors.Is(err, consul.ErrRefused) {
		t.Fatalf("second release: %v", err)
	}
	if got := get(t, c, key); string(got.Value) != "bye" || got.Session != "" {
		t.Fatalf("after release: %+v", got)
	}
}

func TestAcquireWithADeadSessionIsLost(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	session := rawSession(t, raw, nil)
	f := must[consul.Fence](t)(c.Locks.Acquire(t.Context(), prefix+"lock", session, differ("v")))
	if _, err := raw.Session().Destroy(session, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Locks.Acquire(t.Context(), prefix+"lock", session, differ("w")); !errors.Is(err, consul.ErrLost) {
		t.Errorf("Acquire: %v", err)
	}
	if _, err := c.Locks.Bump(t.Context(), f, differ("w")); !errors.Is(err, consul.ErrLost) {
		t.Errorf("Bump: %v", err)
	}
	for _, empty := range []string{"", "no-uuid"} {
		if _, err := c.Locks.Acquire(t.Context(), prefix+"lock", empty, differ("w")); !errors.Is(err, consul.ErrLost) {
			t.Errorf("session %q: %v", empty, err)
		}
	}
}

func TestBumpOfALockThatAnotherHoldsIsLost(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key, mine, other := prefix+"lock", rawSession(t, raw, nil), rawSession(t, raw, nil)
	f := must[consul.Fence](t)(c.Locks.Acquire(t.Context(), key, mine, differ("v")))
	if err := c.Locks.Release(t.Context(), f, nil); err != nil {
		t.Fatal(err)
	}
	must[consul.Fence](t)(c.Locks.Acquire(t.Context(), key, other, differ("o")))
	_, err := c.Locks.Bump(t.Context(), f, differ("w"))
	var held *consul.LockedError
	if !errors.Is(err, consul.ErrLost) || !errors.As(err, &held) || held.Session != other {
		t.Fatalf("got %v, want ErrLost with the holder", err)
	}
}

// Bump tries until the answer is definite (R9). Its fence is valid, even if answers were lost.
func TestBumpTriesUntilTheAnswerIsDefinite(t *testing.T) {
	t.Parallel()
	spoilt, direct, p, prefix := throughProxy(t)
	raw := rawAPI(t, consultest.Shared(t).Addr, "")
	mine, other := rawSession(t, raw, nil), rawSession(t, raw, nil)
	key, value := prefix+"lock", differ("v")
	f := must[consul.Fence](t)(spoilt.Locks.Acquire(t.Context(), key, mine, value))
	p.Set(consultest.OnTxn(consultest.CutBefore, consultest.CutAfter, consultest.Stall, consultest.CutAfter))
	next := must[consul.Fence](t)(spoilt.Locks.Bump(t.Context(), f, value))
	if got := get(t, direct, key); next.Index != got.ModifyIndex || next.Index <= f.Index {
		t.Fatalf("fence %+v after %+v, key %+v", next, f, got)
	}
	// Another holder is a definite answer too, even if the first queries for it fail.
	if err := direct.Locks.Release(t.Context(), next, nil); err != nil {
		t.Fatal(err)
	}
	must[consul.Fence](t)(direct.Locks.Acquire(t.Context(), key, other, differ("o")))
	spoil := 3
	p.Set(func(r *http.Request) consultest.Verdict {
		if r.Method == http.MethodGet && spoil > 0 {
			spoil--
			return consultest.Refuse
		}
		return consultest.Forward
	})
	if _, err := spoilt.Locks.Bump(t.Context(), next, value); !errors.Is(err, consul.ErrLost) {
		t.Fatalf("got %v, want ErrLost", err)
	}
	p.Set(nil)
	if spoil != 0 {
		t.Fatalf("%d spoilt answers were never asked for", spoil)
	}
}

// Bump returns ErrLost for a dead session, even if the first queries about it fail.
func TestBumpOfADeadSessionIsLostInTheEnd(t *testing.T) {
	t.Parallel()
	spoilt, _, p, prefix := throughProxy(t)
	raw := rawAPI(t, consultest.Shared(t).Addr, "")
	session := rawSession(t, raw, nil)
	f := must[consul.Fence](t)(spoilt.Locks.Acquire(t.Context(), prefix+"lock", session, differ("v")))
	if _, err := raw.Session().Destroy(session, nil); err != nil {
		t.Fatal(err)
	}
	spoil := 2
	p.Set(func(r *http.Request) consultest.Verdict {
		if strings.HasPrefix(r.URL.Path, "/v1/session/info/") && spoil > 0 {
			spoil--
			return consultest.Refuse
		}
		return consultest.Forward
	})
	if _, err := spoilt.Locks.Bump(t.Context(), f, differ("w")); !errors.Is(err, consul.ErrLost) {
		t.Fatalf("got %v, want ErrLost", err)
	}
	p.Set(nil)
	if spoil != 0 {
		t.Fatalf("%d spoilt answers were never asked for", spoil)
	}
}

func TestAcquireEndsWithItsContext(t *testing.T) {
	t.Parallel()
	spoilt, _, p, prefix := throughProxy(t)
	session := rawSession(t, rawAPI(t, consultest.Shared(t).Addr, ""), nil)
	p.Set(consultest.Always(consultest.CutBefore))
	ctx, cancel := context.WithCancelCause(t.Context())
	tries := 0
	_, err := spoilt.Locks.Acquire(ctx, prefix+"lock", session, func() []byte {
		if tries++; tries == 3 {
			cancel(errTestDone)
		}
		return fmt.Append(nil, tries)
	})
	if !errors.Is(err, errTestDone) {
		t.Fatalf("got %v, want the cause", err)
	}
}

// If several sessions take a lock at once, exactly one of them gets it.
func TestAcquireRace(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	sessions := []string{rawSession(t, raw, nil), rawSession(t, raw, nil)}
	for round := range 20 {
		key := fmt.Sprintf("%slock%d", prefix, round)
		fences, errs := make([]consul.Fence, len(sessions)), make([]error, len(sessions))
		var all sync.WaitGroup
		for i, session := range sessions {
			all.Go(func() { fences[i], errs[i] = c.Locks.Acquire(t.Context(), key, session, differ(session)) })
		}
		all.Wait()
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		var held *consul.LockedError
		if errs[winner] != nil || !errors.As(errs[1-winner], &held) || held.Session != sessions[winner] {
			t.Fatalf("round %d: %v", round, errs)
		}
		if got := get(t, c, key); got.Session != sessions[winner] || got.ModifyIndex != fences[winner].Index {
			t.Fatalf("round %d: %+v, fence %+v", round, got, fences[winner])
		}
	}
}

// AcquireReading returns keys and prefixes as they were at the acquisition, and no pair for a missing key.
func TestAcquireReading(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	session := rawSession(t, raw, nil)
	index := put(t, c, prefix+"record", "1")
	put(t, c, prefix+"asked/a", "x")
	put(t, c, prefix+"asked/b", "y")
	r := consul.Reading{Keys: []string{prefix + "record", prefix + "missing"}, Prefixes: []string{prefix + "asked/"}}
	f, found, below, err := c.NewMerger().AcquireReading(t.Context(), prefix+"lock", session, differ("v"), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[prefix+"record"].ModifyIndex != index || string(found[prefix+"record"].Value) != "1" {
		t.Errorf("found %+v", found)
	}
	if len(below) != 2 || below[0].Key != prefix+"asked/a" || string(below[1].Value) != "y" {
		t.Errorf("below the prefix: %+v", below)
	}
	if _, err := c.Commit(t.Context(), append(f.Ops(), consul.Set(prefix+"record", []byte("2")))); err != nil {
		t.Errorf("the fence does not hold: %v", err)
	}
	found, below, err = c.Read(t.Context(), r, consul.Consistent)
	if err != nil || string(found[prefix+"record"].Value) != "2" || len(below) != 2 {
		t.Errorf("read %+v, %+v, %v", found, below, err)
	}
}

// AcquireIf takes a lock only if the pair is unchanged since its function has judged it.
func TestAcquireIf(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key, mine, other := prefix+"lock", rawSession(t, raw, nil), rawSession(t, raw, nil)
	var judged []string
	err := c.Locks.AcquireIf(t.Context(), consul.Lock(key, []byte("mine"), mine),
		func(p consul.Pair) ([]consul.Op, error) {
			judged = append(judged, string(p.Value))
			if len(judged) <= 2 { // another program writes meanwhile
				must[map[string]uint64](t)(c.Commit(t.Context(),
					[]consul.Op{consul.Set(key, fmt.Append(nil, len(judged)))}))
			}
			return []consul.Op{consul.Set(prefix+"besides", fmt.Append(nil, len(judged)))}, nil
		})
	if got := get(t, c, key); err != nil || fmt.Sprint(judged) != "[ 1 2]" || string(got.Value) != "mine" ||
		got.Session != mine {
		t.Fatalf("judged %q, %v; key %+v", judged, err, got)
	}
	if got := get(t, c, prefix+"besides"); string(got.Value) != "3" {
		t.Errorf("done besides: %+v", got)
	}
	no := errors.New("no")
	if err := c.Locks.AcquireIf(t.Context(), consul.Lock(key, []byte("again"), mine),
		func(consul.Pair) ([]consul.Op, error) { return nil, no }); !errors.Is(err, no) {
		t.Errorf("not allowed: %v", err)
	}
	tries := 0
	err = c.Locks.AcquireIf(t.Context(), consul.Lock(key, []byte("mine"), mine),
		func(consul.Pair) ([]consul.Op, error) {
			if tries++; tries > 1 {
				return nil, no
			}
			return []consul.Op{consul.CheckMissing(prefix + "besides")}, nil
		})
	if !errors.Is(err, no) {
		t.Errorf("besides refused: %v, %d tries", err, tries)
	}
	yes := func(consul.Pair) ([]consul.Op, error) { return nil, nil }
	var held *consul.LockedError
	if err := c.Locks.AcquireIf(t.Context(), consul.Lock(key, []byte("other"), other), yes); !errors.As(err, &held) ||
		held.Session != mine {
		t.Errorf("held: %v", err)
	}
	if err := c.Locks.AcquireIf(t.Context(), consul.Lock(key, nil, "b7b4ab32-9a5e-4c9d-8a52-0f5d0c2c1e57"),
		yes); !errors.As(err, &held) {
		t.Errorf("held, by a session that does not exist: %v", err)
	}
	if err := c.Locks.AcquireIf(t.Context(), consul.Lock(prefix+"free", nil, "b7b4ab32-9a5e-4c9d-8a52-0f5d0c2c1e57"),
		yes); !errors.Is(err, consul.ErrLost) {
		t.Errorf("by a session that does not exist: %v", err)
	}
	if got := get(t, c, key); string(got.Value) != "mine" {
		t.Errorf("key %+v", got)
	}
}

func TestAgentGone(t *testing.T) {
	t.Parallel()
	c, _, _ := setup(t)
	self := must[string](t)(c.AgentNode(t.Context()))
	for name, want := range map[string]bool{self: false, "no-such-agent": true} {
		if got, err := c.Catalog.AgentGone(t.Context(), name); err != nil || got != want {
			t.Errorf("%s is gone: %v, %v; want %v", name, got, err, want)
		}
	}
	many := []string{self}
	for i := range 20 {
		many = append(many, fmt.Sprintf("no-such-agent-%d", i))
	}
	for _, names := range [][]string{{self, "no-such-agent-1", "", "a/b ?\"%"}, many} {
		got, err := c.Catalog.LivingNodes(t.Context(), names)
		for _, name := range names {
			if err != nil || got[name] != (name == self) {
				t.Errorf("of %d: %s lives: %v, %v", len(names), name, got[name], err)
			}
		}
	}
}
