package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm/janitor"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestMain(m *testing.M) { os.Exit(consultest.Main(m)) }

func quiet(t *testing.T) obs.Logger {
	t.Helper()
	log, err := obs.NewLogger(io.Discard, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func setup(t *testing.T) (*consul.Client, *store.Store) {
	t.Helper()
	client, prefix := consultest.Client(t)
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	st := store.New(client, keys)
	if _, err := st.EnsureSchema(t.Context()); err != nil { // with the gate
		t.Fatal(err)
	}
	return client, st
}

// leader returns the leader's side of the store without a fence.
func leader(client *consul.Client, st *store.Store) *store.Leader {
	return st.Leader("f", client.Commit)
}

func put(t *testing.T, c *consul.Client, key, value string) {
	t.Helper()
	if _, err := c.Commit(t.Context(), []consul.Op{consul.Set(key, []byte(value))}); err != nil {
		t.Fatal(err)
	}
}

func idAt(at time.Time) string {
	return strings.ToLower(ulid.MustNew(ulid.Timestamp(at), ulid.DefaultEntropy()).String())
}

func TestOldAuditRecordsAreRemoved(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	now := time.Now()
	for i := range 150 { // more than fit in one transaction
		put(t, client, st.Keys().Audits.Key(idAt(now.Add(-time.Duration(i)*time.Hour))), "{}")
	}
	put(t, client, st.Keys().Audits.Key("by-hand"), "note")
	j := janitor.New(janitor.Config{
		Records: leader(client, st), Log: quiet(t), AuditKeep: 100, AuditAge: 50*time.Hour + time.Minute, Most: 90,
	})
	for _, want := range []int{51, 51} { // one round removes all, in several parts
		if err := j.Round(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		ids, err := leader(client, st).AuditIDs(t.Context())
		if err != nil || len(ids) != want+1 || !slices.Contains(ids, "by-hand") {
			t.Fatalf("%d records, want %d and one by hand: %v", len(ids), want, err)
		}
	}
}

func TestAuditRecordsExpireByNumberAndAge(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var ids []string
	for i := range 10 {
		ids = append(ids, idAt(now.Add(time.Duration(i-9)*time.Minute)))
	}
	for _, tt := range []struct {
		keep int
		age  time.Duration
		want int
	}{
		{10, time.Hour, 0},
		{3, time.Hour, 7},
		{10, 4*time.Minute + time.Second, 5},
		{3, 4*time.Minute + time.Second, 7},
		{0, time.Hour, 10},
	} {
		if got := janitor.Expired(ids, now, tt.keep, tt.age); !slices.Equal(got, ids[:tt.want]) {
			t.Errorf("keep %d, age %s: %d expired, want %d", tt.keep, tt.age, len(got), tt.want)
		}
	}
}

// apply stores a controller with its own manifest, as rcctl does.
func apply(t *testing.T, st *store.Store, id, version string) (digest string) {
	t.Helper()
	m := &manifest.Manifest{Version: 1, ID: "web", Launchables: []manifest.Launchable{{
		Name:     "main",
		Artifact: manifest.Artifact{Kind: "tar", URL: "file:///" + version, SHA256: strings.Repeat("0", 64)},
	}}}
	canonical, err := m.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	one := 1
	rec, err := st.RCs.Get(t.Context(), store.Consistent, id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	digest = manifest.Digest(canonical)
	r := rc.RC{
		ID: id, Name: id, ManifestDigest: digest, ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}},
		Generation: rec.Value.Generation + 1,
	}
	err = st.Operator.ChangeRC(t.Context(), store.RCChange{
		RC: r, Index: rec.Index, Manifests: []store.DeployManifest{{Digest: digest, Canonical: canonical}},
		Audit: store.NewAudit("test", "apply", id, nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestAManifestThatAnyRecordNamesIsKept(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	k := st.Keys()
	old := apply(t, st, "web", "v1")
	used := apply(t, st, "web", "v2")
	named := map[string]string{ // digests that only damaged or foreign records name, by the key of the record
		k.Prefix() + "pods/x/main.0": "", k.Prefix() + "intent/n1/x/main.0": "", k.Prefix() + "reality/n1/x/main.0": "",
		k.Prefix() + "nodes/3/n1": "", k.Prefix() + "rollouts/r1": "", k.Prefix() + "deployments/d/history/1": "",
	}
	i := 0
	for key := range named {
		i++
		named[key] = fmt.Sprintf("%064x", i)
		put(t, client, key, `{"half a record","digest":"`+named[key]+`"`)
		put(t, client, k.Manifests.Key(named[key]), "{}")
	}
	j := janitor.New(janitor.Config{Records: leader(client, st), Log: quiet(t), ManifestGrace: time.Hour})
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(59 * time.Minute)} {
		if err := j.Round(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Manifest(t.Context(), old); err != nil {
			t.Fatalf("within the grace: %v", err)
		}
	}
	if err := j.Round(t.Context(), now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Manifest(t.Context(), old); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after the grace: %v", err)
	}
	for _, digest := range append(slices.Collect(mapValues(named)), used) {
		if _, err := client.Get(t.Context(), k.Manifests.Key(digest), consul.Consistent); err != nil {
			t.Errorf("%s: %v", digest, err)
		}
	}
}

func mapValues(m map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// racing applies a manifest after it was found unused and before it is removed.
type racing struct {
	janitor.Records
	apply func()
}

func (r racing) DeleteManifest(ctx context.Context, ref store.ManifestRef) error {
	r.apply()
	return r.Records.DeleteManifest(ctx, ref)
}

func TestAnAppliedManifestIsNotRemoved(t *testing.T) {
	t.Parallel()
	client, st := setup(t)
	old := apply(t, st, "web", "v1")
	apply(t, st, "web", "v2")
	applied := 0
	records := racing{leader(client, st), func() { applied++; apply(t, st, "web", "v1") }}
	j := janitor.New(janitor.Config{Log: quiet(t), Records: records})
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(2 * time.Hour)} {
		if err := j.Round(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := st.Manifest(t.Context(), old); err != nil || applied != 1 {
		t.Errorf("after %d applies: %v", applied, err)
	}
	// It was used and is unused again: the grace period starts again.
	apply(t, st, "web", "v3")
	if err := j.Round(t.Context(), now.Add(3*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Manifest(t.Context(), old); err != nil {
		t.Error(err)
	}
}

// idle is an empty store that counts rounds.
type idle struct{ rounds int }

func (i *idle) AuditIDs(context.Context) ([]string, error)                   { i.rounds++; return nil, nil }
func (i *idle) DeleteAudit(context.Context, []string) (int, error)           { return 0, nil }
func (i *idle) UnusedManifests(context.Context) ([]store.ManifestRef, error) { return nil, nil }
func (i *idle) DeleteManifest(context.Context, store.ManifestRef) error      { return nil }
func (i *idle) SweepDrops(context.Context, int) (int, error)                 { return 0, nil }

func TestTheLeaderCleansUpEveryTenMinutes(t *testing.T) {
	t.Parallel()
	log := quiet(t)
	synctest.Test(t, func(t *testing.T) {
		records := &idle{}
		j := janitor.New(janitor.Config{Records: records, Log: log})
		errDone := errors.New("done")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 25*time.Minute, errDone)
		defer cancel()
		if err := j.Run(ctx); !errors.Is(err, errDone) || records.rounds != 2 {
			t.Errorf("%d rounds, %v", records.rounds, err)
		}
	})
}
