package farm_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// newOwnCluster is newCluster on a Consul of its own, for what concerns all of it.
func newOwnCluster(t *testing.T) *cluster {
	t.Helper()
	server, err := consultest.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	c := &cluster{t: t, addr: server.Addr, nodes: map[string]*simnode.Node{}}
	if c.client, err = consul.New(consul.Config{Address: c.addr}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.Close)
	keys, err := store.NewKeys(store.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	c.store = store.New(c.client, keys)
	return c
}

// snapshot takes a snapshot of the whole Consul (GET) or restores one (PUT).
func (c *cluster) snapshot(method string, body []byte) []byte {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.addr+"/v1/snapshot", bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s snapshot: %d %v %s", method, resp.StatusCode, err, data)
	}
	return data
}

// A snapshot older than every living session: the sessions vanish with the restore, so that each daemon learns of it through
// the loss of its session. The nonce is renewed (R1), and what runs is adopted where it runs, all the same.
func TestARestoreOlderThanTheSessions(t *testing.T) {
	t.Parallel()
	c := newOwnCluster(t)
	old := store.Schema{FormatVersion: store.FormatVersion, Nonce: store.NewID(), CreatedAt: time.Now().Add(-time.Hour)}
	c.put(c.store.Keys().Schema(), mustJSON(t, old)) // nothing waits because the nonce is new
	c.apply("web", testManifest("web", 0), replicas(3))
	snapshot := c.snapshot(http.MethodGet, nil)
	for i := range 6 {
		c.node(fmt.Sprintf("n%d", i), nil, nil)
	}
	c.farm("f1")
	c.converged("web", 3)
	before := c.running("web")
	c.snapshot(http.MethodPut, snapshot)
	consultest.Eventually(t, soon, func() error {
		for id, on := range c.running("web") {
			if len(on) != 1 || before[id] == nil || on[0] != before[id][0] {
				t.Fatalf("%s ran on %v, now on %v", id, before[id], on)
			}
		}
		schema, err := c.store.Schema(t.Context())
		if err != nil || schema.Value.Nonce <= old.Nonce {
			return fmt.Errorf("the nonce was not renewed: %w", err)
		}
		placements, corrupt, err := c.store.Placements(t.Context(), "web", true)
		if err = errors.Join(append(corrupt, err)...); err != nil {
			return err
		}
		if len(placements) != 3 {
			return fmt.Errorf("%d placements", len(placements))
		}
		for _, p := range placements {
			if p.Value.AdoptedAtGeneration == 0 {
				return fmt.Errorf("%s was placed, not adopted", p.Value.Identity)
			}
		}
		return nil
	})
	c.converged("web", 3)
}
