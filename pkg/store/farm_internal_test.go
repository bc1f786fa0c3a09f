package store

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func empty(t *testing.T) *Store {
	t.Helper()
	client, prefix := consultest.Client(t)
	keys, err := NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	return New(client, keys)
}

// sessions returns the FarmSessions of farms below one prefix with a schema and a breaker.
func sessions(t *testing.T, farms int) []*FarmSession {
	t.Helper()
	st := empty(t)
	if _, err := st.EnsureSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out []*FarmSession
	for i := range farms {
		out = append(out, st.FarmSession(&consul.Session{}, fmt.Sprintf("f%d", i)))
	}
	return out
}

func audited(t *testing.T, st *FarmSession) []Audit {
	t.Helper()
	records, corrupt, err := st.ListAudit(t.Context(), AuditFilter{})
	if err != nil || len(corrupt) > 0 {
		t.Fatal(err, corrupt)
	}
	return records
}

// A farm that trips the breaker writes an audit record, because documents tell operators to look there.
func TestTrippingTheBreakerWritesAnAuditRecord(t *testing.T) {
	t.Parallel()
	farm := sessions(t, 1)[0]
	before, err := farm.Breaker.Get(t.Context(), Consistent)
	if err != nil {
		t.Fatal(err)
	}
	tripped := Breaker{Tripped: true, Reason: "12 of 20", By: "f0", Since: time.Now().UTC()}
	said := NewAudit("f0", "trip", "web", []string{"breaker: not tripped -> tripped (12 of 20)"})
	if err := farm.TripBreaker(t.Context(), before.Index, tripped, said); err != nil {
		t.Fatal(err)
	}
	if now, err := farm.Breaker.Get(t.Context(), Consistent); err != nil || now.Value != tripped {
		t.Errorf("breaker %+v, %v", now.Value, err)
	}
	if err := farm.TripBreaker(t.Context(), before.Index, tripped,
		NewAudit("f0", "trip", "other", nil)); !errors.Is(err, ErrConflict) {
		t.Errorf("tripped again from what was read before: %v", err)
	}
	got := audited(t, farm)
	if len(got) != 1 || got[0].ID != said.ID || got[0].RCID != "web" || !slices.Equal(got[0].Changes, said.Changes) {
		t.Errorf("audit records %+v, want that of the farm that tripped it", got)
	}
}

// If several farms see that the store went back, only one renews the epoch and writes an audit record.
func TestOneFarmRenewsTheEpochAndWritesAnAuditRecord(t *testing.T) {
	t.Parallel()
	farms := sessions(t, 5)
	before, err := farms[0].Schema.Get(t.Context(), Default)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, farm := range farms {
		all.Go(func() {
			if err := farm.RenewEpoch(t.Context(), before.Value.Epoch, ""); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	after, err := farms[0].Schema.Get(t.Context(), Default)
	if err != nil || after.Value.Epoch <= before.Value.Epoch {
		t.Fatalf("epoch %s after %s, %v", after.Value.Epoch, before.Value.Epoch, err)
	}
	want := fmt.Sprintf("schema.nonce: %s -> %s, as the store went back in time", before.Value.Epoch, after.Value.Epoch)
	got := audited(t, farms[0])
	isFarm := func(f *FarmSession) bool { return f.farmID == got[0].Who }
	if len(got) != 1 || got[0].What != "renew-nonce" || !slices.ContainsFunc(farms, isFarm) ||
		!slices.Equal(got[0].Changes, []string{want}) {
		t.Errorf("audit records %+v, want one, of a farm: %s", got, want)
	}
}

// A farm that sees the store go back before it has read the epoch replaces the present one, which may be old. If the
// farm knows an older epoch, another farm has renewed the epoch already. Then the farm changes nothing.
func TestAnUnknownEpochIsRenewed(t *testing.T) {
	t.Parallel()
	farm := sessions(t, 1)[0]
	epoch := func() string {
		t.Helper()
		rec, err := farm.Schema.Get(t.Context(), Default)
		if err != nil {
			t.Fatal(err)
		}
		return rec.Value.Epoch
	}
	first := epoch()
	if err := farm.RenewEpoch(t.Context(), "", ""); err != nil {
		t.Fatal(err)
	}
	second := epoch()
	if second <= first {
		t.Errorf("epoch %s after %s", second, first)
	}
	if err := farm.RenewEpoch(t.Context(), first, ""); err != nil || epoch() != second {
		t.Errorf("epoch %s after %s, %v; want it left alone", epoch(), second, err)
	}
}

// A late release of an earlier tenure does not release a later tenure's lock, even under the same session.
func TestALateReleaseOfAnEarlierTenure(t *testing.T) {
	t.Parallel()
	st, node, _ := nodeSession(t) // only its session is used
	farm := st.FarmSession(node.sess, "f")
	claim := func() Fence {
		t.Helper()
		got, err := farm.Claim(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		return got.Fence
	}
	locked := func() bool {
		t.Helper()
		lock, err := st.c.Get(t.Context(), st.keys.Locks.Key("web"), consul.Consistent)
		if err != nil {
			t.Fatal(err)
		}
		return lock.Session != ""
	}
	first := claim()
	second, err := farm.Bump(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if err := farm.Release(t.Context(), "web", first); !LockRefused(err, first) || !locked() {
		t.Errorf("an earlier release: %v, the lock is held: %v", err, locked())
	}
	if err := farm.Release(t.Context(), "web", second); err != nil || locked() {
		t.Errorf("the release of this tenure: %v, the lock is held: %v", err, locked())
	}
	claim()
	if err := farm.Release(t.Context(), "web", second); !LockRefused(err, second) || !locked() {
		t.Errorf("the release of the tenure before: %v, the lock is held: %v", err, locked())
	}
}

// Deployments that store the same manifest at once get no conflict.
func TestChangesWithTheSameManifestDoNotConflict(t *testing.T) {
	t.Parallel()
	st := empty(t)
	canonical := []byte(`{"id":"web"}`)
	m := DeployManifest{Digest: manifest.Digest(canonical), Canonical: canonical}
	var group errgroup.Group
	for i := range 8 {
		group.Go(func() error {
			own := consul.CAS(st.keys.Deployed.Key(fmt.Sprint("s", i)), []byte("{}"), 0)
			return st.change(t.Context(), "service", []consul.Op{own}, []DeployManifest{m}, nil,
				NewAudit("op", "deploy", "", nil))
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
