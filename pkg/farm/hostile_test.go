package farm_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Whatever a node writes, the farm goes on with its work on other nodes, and on the controllers that the node names.
// The farm reports an impossible record.
func TestAHostileNodeDelaysNothingElse(t *testing.T) {
	t.Parallel()
	const (
		node   = `{"name":"n9","capacity":{"slots":9},"orphan_pages":{"edition":"e","count":%s,"orphans":%s}}`
		page   = `{"node":"n9","page":0,"edition":"e","nonce":"","orphans":[%s]}`
		orphan = `{"rc_id":"web","role":%q,"index":%d,"pod_id":"web","digest":%q,"revision":%d,"reason":"orphaned"}`
	)
	digest := strings.Repeat("d", 64)
	list := func(role string, index int, digest string) string {
		return fmt.Sprintf(page, fmt.Sprintf(orphan, role, index, digest, 7))
	}
	for name, does := range map[string]struct{ record, page string }{
		"a negative number of orphans": {fmt.Sprintf(node, "1", "-1"), list("main", 5, digest)},
		"very many orphans":            {fmt.Sprintf(node, "1", "2000000000"), list("main", 5, digest)},
		"an orphan without a digest":   {fmt.Sprintf(node, "1", "1"), list("main", 5, "")},
		"an orphan with index -1":      {fmt.Sprintf(node, "1", "1"), list("main", -1, digest)},
		"an orphan without a role":     {fmt.Sprintf(node, "1", "1"), list("", 5, digest)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			reg, _ := c.watchedFarm("f1", &recorder{})
			c.apply("web", testManifest("web", 0), replicas(1))
			c.converged("web", 1)
			c.lockedBy("n9", map[string]string{
				c.store.Keys().OrphanPages.Key("n9", "0"): does.page,
				c.store.Keys().Nodes.Key("n9"):            does.record,
			})
			metric(t, reg, "rcfarm_farm_corrupt_records", "", is(1))
			c.ring("web")
			c.apply("web", testManifest("web", 0), replicas(3))
			c.converged("web", 3)
			placed, corrupt, err := c.store.Pods.List(t.Context(), store.Consistent, "web")
			if err != nil || len(corrupt) > 0 || len(placed) != 3 {
				t.Errorf("%d placements, unreadable %v, %v", len(placed), corrupt, err)
			}
		})
	}
}

// lockedBy writes texts at keys, and makes a session hold the node's record among them. The node's token is enough for
// that.
func (c *cluster) lockedBy(name string, texts map[string]string) {
	c.t.Helper()
	client, st := c.connect()
	written := make(chan error, 1)
	c.background(func(ctx context.Context) error {
		cfg := c.session("preparer", name)
		return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
			var ops []consul.Op
			for key, text := range texts {
				op := consul.Set(key, []byte(text))
				if key == st.Keys().Nodes.Key(name) {
					op = consul.Lock(key, []byte(text), s.Releasing)
				}
				ops = append(ops, op)
			}
			_, err := client.Commit(ctx, ops)
			select {
			case written <- err:
			default:
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
	consultest.Eventually(c.t, soon, func() error {
		select {
		case err := <-written:
			return err
		default:
			return fmt.Errorf("the record of %s is not written yet", name)
		}
	})
}
