package consul_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// This package and docs/promises.md rely on these facts about Consul. If one of these tests fails with a new version of
// Consul, the code that relies on the fact is wrong for this version.

// rawTxn leaves out our own checks.
func rawTxn(t *testing.T, raw *api.Client, ops ...api.KVTxnOp) (bool, *api.TxnResponse, error) {
	t.Helper()
	txn := make(api.TxnOps, len(ops))
	for i := range ops {
		txn[i] = &api.TxnOp{KV: &ops[i]}
	}
	ok, resp, _, err := raw.Txn().Txn(txn, new(api.QueryOptions).WithContext(t.Context()))
	return ok, resp, err
}

func TestFactTxnTakes128Operations(t *testing.T) {
	t.Parallel()
	_, raw, prefix := setup(t)
	ops := make([]api.KVTxnOp, consul.ServerTxnOps+1)
	for i := range ops {
		ops[i] = api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: prefix + "missing"}
	}
	if ok, _, err := rawTxn(t, raw, ops[:consul.ServerTxnOps]...); err != nil || !ok {
		t.Fatalf("%d operations: %v %v", consul.ServerTxnOps, ok, err)
	}
	if ok, _, err := rawTxn(t, raw, ops...); err == nil || ok {
		t.Fatalf("%d operations, all of them reads, were accepted", len(ops))
	}
}

func TestFactTxnBodyLimitCountsBase64(t *testing.T) {
	t.Parallel()
	_, raw, prefix := setup(t)
	// Base64 makes 4/3 of a value's length. This value fills the body up to the last few bytes.
	op := api.KVTxnOp{Verb: api.KVSet, Key: prefix + "big"}
	around := bodyBytes(t, op)
	op.Value = make([]byte, (consul.ServerTxnBytes-around)/4*3)
	if size := bodyBytes(t, op); size > consul.ServerTxnBytes || size < consul.ServerTxnBytes-8 {
		t.Fatalf("the test's body has %d bytes", size)
	}
	if ok, _, err := rawTxn(t, raw, op); err != nil || !ok {
		t.Fatalf("a body just below the limit: %v %v", ok, err)
	}
	op.Value = make([]byte, len(op.Value)+9)
	if ok, _, err := rawTxn(t, raw, op); err == nil || ok {
		t.Fatal("a body just above the limit was accepted")
	}
}

func bodyBytes(t *testing.T, op api.KVTxnOp) int {
	t.Helper()
	if op.Value == nil {
		op.Value = []byte{}
	}
	body := must[[]byte](t)(json.Marshal(api.TxnOps{{KV: &op}}))
	return len(body) + 1 // the client's encoder adds a newline
}

func TestFactCheckIndexOnMissingKeyFails(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	for _, index := range []uint64{0, 1} {
		_, err := c.Commit(t.Context(),
			[]consul.Op{consul.Set(prefix+"other", nil), consul.CheckIndex(prefix+"missing", index)})
		mustRefuse(t, err, 1)
	}
}

func TestFactCASZeroCreatesOnly(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	create := []consul.Op{consul.CAS(prefix+"k", []byte("first"), 0)}
	must[map[string]uint64](t)(c.Commit(t.Context(), create))
	_, err := c.Commit(t.Context(), create)
	mustRefuse(t, err, 0)
	_, err = c.Commit(t.Context(), []consul.Op{consul.CAS(prefix+"missing", nil, 7)})
	mustRefuse(t, err, 0)
}

func TestFactLaterOperationsSeeEarlierOnes(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	a, b := prefix+"a", prefix+"b"
	put(t, c, a, "old")
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{
		consul.Delete(a), consul.CheckMissing(a), consul.CAS(a, []byte("new"), 0), consul.CAS(b, nil, 0),
	}))
	_, err := c.Commit(t.Context(), []consul.Op{consul.Delete(a), consul.CAS(b, nil, 0), consul.CheckMissing(b)})
	mustRefuse(t, err, 1)
	if got := string(get(t, c, a).Value); got != "new" {
		t.Fatalf("a refused transaction left its mark: %q", got)
	}
}

func TestFactTwoCASOnOneKeyFail(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	key := prefix + "k"
	index := put(t, c, key, "v")
	_, err := c.Commit(t.Context(),
		[]consul.Op{consul.CAS(key, []byte("1"), index), consul.CAS(key, []byte("2"), index)})
	mustRefuse(t, err, 1)
	missing := prefix + "missing"
	_, err = c.Commit(t.Context(), []consul.Op{consul.CAS(missing, nil, 0), consul.CAS(missing, nil, 0)})
	mustRefuse(t, err, 1)
}

func TestFactGetOfMissingKeyFailsAndGetOrEmptyDoesNot(t *testing.T) {
	t.Parallel()
	_, raw, prefix := setup(t)
	if ok, _, err := rawTxn(t, raw, api.KVTxnOp{Verb: api.KVGet, Key: prefix + "missing"}); ok || err != nil {
		t.Fatalf("get: %v %v, want a refusal", ok, err)
	}
	ok, resp, err := rawTxn(t, raw, api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: prefix + "missing"})
	if err != nil || !ok || len(resp.Results) != 1 {
		t.Fatalf("get-or-empty: %v %+v %v", ok, resp, err)
	}
	if kv := resp.Results[0].KV; kv.Key != prefix+"missing" || kv.ModifyIndex != 0 || kv.Value != nil {
		t.Fatalf("get-or-empty gave %+v", kv)
	}
}

func TestFactDeleteCASOnMissingKeySucceeds(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.DeleteCAS(prefix+"missing", 7)}))
	put(t, c, prefix+"k", "v")
	_, err := c.Commit(t.Context(), []consul.Op{consul.DeleteCAS(prefix+"k", 7)})
	mustRefuse(t, err, 0)
}

func TestFactFailuresCarryTheirPosition(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	_, err := c.Commit(t.Context(), []consul.Op{
		consul.Set(prefix+"fine", nil),
		consul.CheckIndex(prefix+"one", 1),
		consul.Set(prefix+"fine", []byte("2")),
		consul.CAS(prefix+"two", nil, 9),
	})
	mustRefuse(t, err, 1)
	mustRefuse(t, err, 3)
	if !consul.RefusedOn(err, prefix+"one") || !consul.RefusedOn(err, prefix+"two") ||
		consul.RefusedOn(err, prefix+"fine") {
		t.Fatalf("RefusedOn does not match %v", err)
	}
	if !strings.Contains(err.Error(), prefix+"one") {
		t.Fatalf("the error does not name the key: %v", err)
	}
}

// A write with the same bytes changes no index, so it wakes no watch. Therefore each write to a bell has a new value.
func TestFactIdenticalValueChangesNoIndex(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	key := prefix + "k"
	first := put(t, c, key, "same")
	put(t, c, prefix+"elsewhere", "x")
	put(t, c, key, "same")
	if again := get(t, c, key).ModifyIndex; again != first {
		t.Fatalf("an identical value moved the index from %d to %d", first, again)
	}
	// A cas with the same bytes checks the index, and then changes nothing.
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.CAS(key, []byte("same"), first)}))
	if again := get(t, c, key).ModifyIndex; again != first {
		t.Fatalf("an identical cas moved the index from %d to %d", first, again)
	}
	// So if a program writes new flags, the janitor's delete-cas is refused.
	must[map[string]uint64](t)(c.Commit(t.Context(), []consul.Op{consul.SetFlags(key, []byte("same"), 1)}))
	touched := get(t, c, key)
	if touched.ModifyIndex == first || touched.Flags != 1 {
		t.Fatalf("a new flag value moved nothing: %+v", touched)
	}
	_, err := c.Commit(t.Context(), []consul.Op{consul.DeleteCAS(key, first)})
	mustRefuse(t, err, 0)
}

func TestFactPrefixWithSlashDoesNotListLongerNames(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	put(t, c, prefix+"node1/a", "1")
	put(t, c, prefix+"node10/a", "10")
	if got := must[[]string](t)(c.Keys(t.Context(), prefix+"node1/")); len(got) != 1 || got[0] != prefix+"node1/a" {
		t.Fatalf("node1/ lists %v", got)
	}
	if got := must[[]string](t)(c.Keys(t.Context(), prefix+"node1")); len(got) != 2 {
		t.Fatalf("node1 without a slash lists %v", got)
	}
}

// A check-session with an empty session accepts each unlocked key, so Commit does not send one.
func TestFactCheckSessionWithEmptySessionPasses(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	key := prefix + "unlocked"
	put(t, c, key, "v")
	if ok, resp, err := rawTxn(t, raw, api.KVTxnOp{Verb: api.KVCheckSession, Key: key}); err != nil || !ok {
		t.Fatalf("raw: %v %+v %v", ok, resp, err)
	}
	_, err := c.Commit(t.Context(), []consul.Op{consul.Set(prefix+"w", nil), consul.CheckSession(key, "")})
	if !errors.Is(err, consul.ErrLost) {
		t.Fatalf("Commit: %v, want ErrLost", err)
	}
	if _, err := c.Get(t.Context(), prefix+"w", consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
		t.Fatalf("it was sent: %v", err)
	}
}

// A key that is removed and made again has another create index, even in one transaction. So two values of a counter
// can be compared only if the create index is the same.
func TestFactAKeyThatIsMadeAgainIsAnother(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	key := prefix + "k"
	made := func(ops ...consul.Op) (created, modified uint64) {
		t.Helper()
		if _, err := c.Commit(t.Context(), ops); err != nil {
			t.Fatal(err)
		}
		pair, err := c.Get(t.Context(), key, consul.Consistent)
		if err != nil {
			t.Fatal(err)
		}
		return pair.CreateIndex, pair.ModifyIndex
	}
	first, index := made(consul.Set(key, []byte("1")))
	if same, later := made(consul.CAS(key, []byte("2"), index)); same != first || later == index {
		t.Errorf("changed: made at %d, then at %d", first, same)
	} else {
		index = later
	}
	if other, _ := made(consul.DeleteCAS(key, index), consul.CAS(key, []byte("2"), 0)); other == first {
		t.Errorf("removed and made again: made at %d both times", first)
	}
}
