package farm_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A node that comes back after its owner has read that it is dead, and before the owner writes, keeps its pod: it runs.
func TestANodeThatReturnsIsNotForgotten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	client, _ := c.connect()
	id := pod.Identity{RCID: "web", Role: "main", Index: 0}
	held := func(want bool) error {
		_, got, err := c.store.NodeHeld(context.Background(), "n1")
		if err == nil && got != want {
			err = fmt.Errorf("held: %t", got)
		}
		return err
	}
	var once sync.Once
	tried := make(chan struct{})
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		for i := range b.Pods {
			if b.Pods[i].Placement == nil {
				once.Do(func() {
					c.node("n1", nil, nil)
					consultest.Eventually(t, soon, func() error { return held(true) })
					close(tried)
				})
			}
		}
		return nil
	}}, nil)
	stop := c.node("n1", nil, nil)
	c.apply("web", testManifest("web", 8080), replicas(1))
	c.converged("web", 1)
	before, _, err := c.store.Placements(t.Context(), "web", true)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	consultest.Eventually(t, soon, func() error { return held(false) })
	r := store.Request{ID: store.NewID(), RCID: "web", Kind: store.ForgetPod, Node: "n1", Pod: id, By: "operator", At: time.Now().UTC()}
	if err := c.store.Ask(t.Context(), r, store.NewAudit("operator", "forget", "web", nil)); err != nil {
		t.Fatal(err)
	}
	<-tried
	consultest.Eventually(t, soon, func() error {
		asked, err := client.List(t.Context(), c.store.Keys().Requests("web"), consul.Consistent)
		if err == nil && len(asked) > 0 {
			err = fmt.Errorf("requests %+v", asked)
		}
		return err
	})
	c.converged("web", 1)
	after, _, err := c.store.Placements(t.Context(), "web", true)
	if err != nil || len(after) != 1 || after[0].Value.Revision != before[0].Value.Revision {
		t.Errorf("P5: it was forgotten and placed again: %+v, %v", after, err)
	}
}
