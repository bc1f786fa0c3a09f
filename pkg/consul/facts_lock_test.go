package consul_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

func TestFactLockAndUnlockOverwriteTheValue(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key, session := prefix+"lock", rawSession(t, raw, nil)
	put(t, c, key, "before")
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Lock(key, []byte("locked"), session)}))
	if got := get(t, c, key); string(got.Value) != "locked" || got.Session != session {
		t.Fatalf("after lock: %+v", got)
	}
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.Unlock(key, []byte("free"), session)}))
	if got := get(t, c, key); string(got.Value) != "free" || got.Session != "" {
		t.Fatalf("after unlock: %+v", got)
	}
}

func TestFactWriteToLockedKeyKeepsTheSession(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key, session := prefix+"lock", rawSession(t, raw, nil)
	locked := must[map[string]uint64](t)(c.Commit(t.Context(),
		[]consul.Op{consul.Lock(key, []byte("locked"), session)}))[key]
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.CAS(key, []byte("cas"), locked)}))
	if got := get(t, c, key); got.Session != session || got.ModifyIndex == locked {
		t.Fatalf("after cas: %+v", got)
	}
	put(t, c, key, "put")
	entry, _, err := raw.KV().Get(key, nil)
	if err != nil || entry.Session != session || entry.LockIndex != 0 {
		t.Fatalf("after set: %+v %v, want the session kept and LockIndex 0", entry, err)
	}
}

func TestFactLockingAgainMovesTheIndexOnlyWithAnotherValue(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key, session := prefix+"lock", rawSession(t, raw, nil)
	lock := func(value string) uint64 {
		written := must[map[string]uint64](t)(c.Commit(t.Context(),
			[]consul.Op{consul.Lock(key, []byte(value), session)}))
		if read := get(t, c, key).ModifyIndex; written[key] != read {
			t.Fatalf("the transaction said %d, the key says %d", written[key], read)
		}
		return written[key]
	}
	first, same := lock("one"), lock("one")
	if same != first {
		t.Fatalf("the same value moved the index from %d to %d", first, same)
	}
	if other := lock("two"); other <= first {
		t.Fatalf("another value did not move the index: %d then %d", first, other)
	}
}

func TestFactFencedTransactionOfEarlierTenureIsRefused(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key, mine, other := prefix+"lock", rawSession(t, raw, nil), rawSession(t, raw, nil)
	value := differ("v")
	first := must[consul.Fence](t)(c.Locks.Acquire(t.Context(), key, mine, value))
	write := func(f consul.Fence) error {
		_, err := c.Commit(t.Context(), append(f.Ops(), consul.Set(prefix+"w", value())))
		return err
	}
	if err := write(first); err != nil {
		t.Fatal(err)
	}
	// The same session takes the lock twice: only the index differs.
	if err := c.Locks.Release(t.Context(), first, nil); err != nil {
		t.Fatal(err)
	}
	mustRefuse(t, write(first), 0)
	second := must[consul.Fence](t)(c.Locks.Acquire(t.Context(), key, mine, value))
	mustRefuse(t, write(first), 1)
	if err := write(second); err != nil {
		t.Fatal(err)
	}
	if err := c.Locks.Release(t.Context(), second, nil); err != nil {
		t.Fatal(err)
	}
	must[consul.Fence](t)(c.Locks.Acquire(t.Context(), key, other, value))
	mustRefuse(t, write(second), 0)
}

func TestFactLockDelay(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	for _, tc := range []struct {
		name  string
		delay time.Duration
		waits bool
	}{
		{"one millisecond", time.Millisecond, false},
		{"zero means fifteen seconds", 0, true},
	} {
		key := prefix + strings.ReplaceAll(tc.name, " ", "-")
		mine, other := rawSession(t, raw, &api.SessionEntry{LockDelay: tc.delay}), rawSession(t, raw, nil)
		must[consul.Fence](t)(c.Locks.Acquire(t.Context(), key, mine, differ("v")))
		if _, err := raw.Session().Destroy(mine, nil); err != nil {
			t.Fatal(err)
		}
		lock := func() error {
			_, err := c.Commit(t.Context(), []consul.Op{consul.Lock(key, []byte("other"), other)})
			return err
		}
		if tc.waits {
			if err := lock(); !errors.Is(err, consul.ErrRefused) || !strings.Contains(err.Error(), "lock delay") {
				t.Fatalf("%s: %v, want a refusal that names the lock delay", tc.name, err)
			}
			continue
		}
		consultest.Eventually(t, 12*time.Second, lock) // less than fifteen seconds, the delay for zero
	}
}

// ttlService returns the passing TTL check of a service, to which a session can be bound.
func ttlService(t *testing.T, raw *api.Client, ttl time.Duration,
	meta string,
) (serviceID string, check api.ServiceCheck) {
	t.Helper()
	id := strings.ReplaceAll(t.Name(), "/", "-")
	check = api.ServiceCheck{ID: id + "-ttl"}
	err := raw.Agent().ServiceRegister(&api.AgentServiceRegistration{
		ID: id, Name: "fact", Meta: map[string]string{"version": meta},
		Check: &api.AgentServiceCheck{CheckID: check.ID, TTL: ttl.String(), Status: api.HealthPassing},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Agent().ServiceDeregister(id) })
	return id, check
}

// boundSession makes a session that is bound to a check, which it keeps passing until the agent has synced it.
func boundSession(t *testing.T, raw *api.Client, check api.ServiceCheck) (id string) {
	t.Helper()
	consultest.Eventually(t, patience, func() (err error) {
		if err := raw.Agent().UpdateTTL(check.ID, "", api.HealthPassing); err != nil {
			return err
		}
		id, _, err = raw.Session().Create(&api.SessionEntry{
			LockDelay: time.Millisecond, NodeChecks: []string{"serfHealth"}, ServiceChecks: []api.ServiceCheck{check},
		}, nil)
		return err
	})
	return id
}

func sessionGone(t *testing.T, raw *api.Client, id string) {
	t.Helper()
	consultest.Eventually(t, patience, func() error {
		entry, _, err := raw.Session().Info(id, nil)
		if err == nil && entry != nil {
			err = fmt.Errorf("session %s is alive", id)
		}
		return err
	})
}

func sessionAlive(t *testing.T, raw *api.Client, id string) {
	t.Helper()
	entry, _, err := raw.Session().Info(id, nil)
	if err != nil || entry == nil {
		t.Fatalf("session %s is gone: %v", id, err)
	}
}

func TestFactSessionDiesWithItsCheck(t *testing.T) {
	t.Parallel()
	_, raw, _ := setup(t)
	const ttl = 3 * time.Second
	id, check := ttlService(t, raw, ttl, "1")
	session := boundSession(t, raw, check)
	beaten := time.Now()
	if err := raw.Agent().UpdateTTL(check.ID, "", api.HealthPassing); err != nil {
		t.Fatal(err)
	}
	sessionGone(t, raw, session)
	lived := time.Since(beaten)
	t.Logf("a session on a check of %s lived %s after the last heartbeat", ttl, lived.Round(10*time.Millisecond))
	// Its own TTL could end a session only after 10 s to 20 s, so the check has ended it.
	if lived < ttl*9/10 || lived > 3*ttl {
		t.Fatalf("lived %s with a TTL of %s", lived, ttl)
	}
	checks, err := raw.Agent().ChecksWithFilter(fmt.Sprintf("ServiceID == %q", id))
	if err != nil || checks[check.ID].Status != api.HealthCritical {
		t.Fatalf("the check is %+v %v", checks[check.ID], err)
	}
}

func TestFactReregisteringKeepsTheSession(t *testing.T) {
	t.Parallel()
	_, raw, _ := setup(t)
	id, check := ttlService(t, raw, time.Minute, "1")
	session := boundSession(t, raw, check)
	// A restarted process registers the same ids while the dead process's session exists.
	ttlService(t, raw, time.Minute, "2")
	consultest.Eventually(t, patience, func() error {
		found, _, err := raw.Catalog().Service("fact", "",
			&api.QueryOptions{Filter: fmt.Sprintf("ServiceID == %q", id)})
		if err == nil && (len(found) != 1 || found[0].ServiceMeta["version"] != "2") {
			err = fmt.Errorf("the servers know %d instances, not the new one", len(found))
		}
		return err
	})
	sessionAlive(t, raw, session)

	if err := raw.Agent().ServiceDeregister(id); err != nil {
		t.Fatal(err)
	}
	sessionGone(t, raw, session)
}

func TestFactHeartbeatOfUnknownCheckFails(t *testing.T) {
	t.Parallel()
	_, raw, prefix := setup(t)
	if err := raw.Agent().UpdateTTL(prefix+"missing", "", api.HealthPassing); err == nil {
		t.Fatal("the agent took a heartbeat for a check that it does not have")
	}
}

// Only a critical check ends a session, not a warning.
func TestFactWarningKeepsTheSession(t *testing.T) {
	t.Parallel()
	_, raw, _ := setup(t)
	_, check := ttlService(t, raw, time.Minute, "1")
	session := boundSession(t, raw, check)
	if err := raw.Agent().UpdateTTL(check.ID, "", api.HealthWarning); err != nil {
		t.Fatal(err)
	}
	consultest.Eventually(t, patience, func() error {
		checks, _, err := raw.Health().State(api.HealthWarning,
			&api.QueryOptions{Filter: fmt.Sprintf("CheckID == %q", check.ID)})
		if err == nil && len(checks) == 0 {
			err = errors.New("the servers do not know of the warning yet")
		}
		return err
	})
	sessionAlive(t, raw, session)
}

func TestFactBehaviorDeleteRemovesTheKeys(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	session := rawSession(t, raw, &api.SessionEntry{LockDelay: time.Millisecond, Behavior: api.SessionBehaviorDelete})
	must[consul.Fence](t)(c.Locks.Acquire(t.Context(), prefix+"member", session, differ("v")))
	if _, err := raw.Session().Destroy(session, new(api.WriteOptions).WithContext(context.Background())); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), prefix+"member", consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
		t.Fatalf("the key outlived its session: %v", err)
	}
}

// The key's index changes when the session that holds a lock ends, and when another takes the lock. So the index in
// between identifies one death of a holder: a transaction that checks it is refused later, even if the lock is free
// again.
func TestFactFreeingAndTakingALockMoveTheIndex(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key := prefix + "lock"
	var free []uint64
	for range 2 { // both times with the same value
		session := rawSession(t, raw, nil)
		consultest.Eventually(t, 12*time.Second, func() error { // the lock delay is only a millisecond
			_, err := c.Commit(t.Context(), []consul.Op{consul.Lock(key, []byte("mine"), session)})
			return err
		})
		held := get(t, c, key)
		if _, err := raw.Session().Destroy(session, nil); err != nil {
			t.Fatal(err)
		}
		pair := get(t, c, key)
		if pair.Session != "" || pair.ModifyIndex <= held.ModifyIndex || len(free) > 0 && held.ModifyIndex <= free[0] {
			t.Fatalf("held %+v, then %+v; free before at %v", held, pair, free)
		}
		free = append(free, pair.ModifyIndex)
	}
	if _, err := c.Commit(t.Context(), []consul.Op{consul.CheckIndex(key, free[0])}); !errors.Is(err,
		consul.ErrRefused) {
		t.Errorf("the index of the first death: %v", err)
	}
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.CheckIndex(key, free[1])}))
}
