package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// onOne has one server, and one controller with one placement.
func onOne(t *testing.T) *chaos {
	t.Helper()
	client, prefix := consultest.Client(t)
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	c := &chaos{keys: keys}
	for range servers {
		c.client, c.stores = append(c.client, client), append(c.stores, store.New(client, keys))
	}
	one, digest := 1, strings.Repeat("d", 64)
	r := rc.RC{
		ID: store.NewID(), Name: "web", ReplicaGroups: []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &one}},
		ManifestDigest: digest,
	}
	p := pod.Placement{
		Identity: pod.Identity{RCID: r.ID, Role: rc.DefaultRole}, Node: "n1", PodID: "web",
		Digest: digest, RunState: pod.Running, Revision: 1, ChangedAt: time.Now(),
	}
	for key, record := range map[string]any{keys.RCs.Key(r.ID): r, keys.Pods.Key(p.Identity.String()): p} {
		value, err := json.Marshal(record)
		if err == nil {
			_, err = client.Commit(t.Context(), []consul.Op{consul.Set(key, value)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *chaos) unreadable(ctx context.Context) (records, placements int, err error) {
	_, corrupt, err := c.stores[0].RCs.List(ctx, store.Consistent)
	_, more, alsoErr := c.stores[0].Pods.List(ctx, store.Consistent)
	return len(corrupt), len(more), errors.Join(err, alsoErr)
}

// No reader accepts a value that spoils a record, and the repair restores the good value.
func TestSpoiltRecordsAreMended(t *testing.T) {
	t.Parallel()
	c := onOne(t)
	if r, p, err := c.unreadable(t.Context()); r+p > 0 || err != nil {
		t.Fatalf("%d records and %d placements are unreadable from the start, %v", r, p, err)
	}
	before := below(t, c.client[0], c.keys.Prefix())
	rng := newRand(1, 1)
	var records, placements int
	for i := range 40 {
		if _, err := c.spoil(t.Context(), rng); err != nil {
			t.Fatal(err)
		}
		r, p, err := c.unreadable(t.Context())
		if err != nil || r+p == 0 {
			t.Fatalf("turn %d: %d records and %d placements are unreadable, %v", i, r, p, err)
		}
		records, placements = records+r, placements+p
		if err := c.mend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, p, err := c.unreadable(t.Context()); err != nil || r+p > 0 {
			t.Fatalf("turn %d: %d records and %d placements are not mended, %v", i, r, p, err)
		}
	}
	if records == 0 || placements == 0 {
		t.Errorf("%d records and %d placements were spoilt", records, placements)
	}
	after := below(t, c.client[0], c.keys.Prefix())
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("%s is not as it was", line)
		}
	}
}

// If a bad value replaced another bad value, the repair still restores the good value.
func TestSpoiltTwice(t *testing.T) {
	t.Parallel()
	var s spoilt
	rng := newRand(1, 1)
	first := s.replace([]byte("good"), rng)
	second := s.replace([]byte(first), rng)
	for _, bad := range []string{first, second} {
		if good, is := s.good([]byte(bad)); !is || string(good) != "good" {
			t.Errorf("%.60s replaced %q", bad, good)
		}
	}
	if _, is := s.good([]byte("good")); is {
		t.Error("what is good counts as bad")
	}
}
