package farm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// rollout writes the record of a rollout of the service web.
func (c *cluster) rollout(id string, state rollout.State) {
	c.t.Helper()
	text, err := json.Marshal(rollout.Record{ID: id, Service: "web", State: state})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.client.Commit(c.t.Context(), []consul.Op{consul.Set(c.store.Keys().Rollouts.Key("web"), text)}); err != nil {
		c.t.Fatal(err)
	}
}

// record reads a controller.
func (c *cluster) record(id string) rc.RC {
	c.t.Helper()
	rec, err := c.store.RCs.Get(c.t.Context(), store.Consistent, id)
	if err != nil {
		c.t.Fatal(err)
	}
	return rec.Value
}

// manifests that differ in nothing but their ids, and the digest of the first.
func (c *cluster) formerDigest() string {
	c.t.Helper()
	canonical, err := testManifest("web", 0).Canonical()
	if err != nil {
		c.t.Fatal(err)
	}
	return digestOf(canonical)
}

// The controller of a pre_deploy that an older store brought back without its rollout starts nothing: its program would run a second time.
func TestAPreDeployWithoutItsRolloutStartsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.apply("web-r1-pre-deploy", testManifest("web", 0), func(r *rc.RC) { r.Mutator = "web/r1" })
	c.farm("f1")
	consultest.Eventually(t, soon, func() error {
		if r := c.record("web-r1-pre-deploy"); r.Mutator != "" || !r.Disabled || r.DeletedAt != nil || r.Generation != 1 {
			return fmt.Errorf("it is %+v", r)
		}
		return nil
	})
	if placed, _, err := c.store.Pods.List(t.Context(), store.Consistent, "web-r1-pre-deploy"); err != nil || len(placed) > 0 {
		t.Errorf("placed %+v, %v", placed, err)
	}
}

// A controller is taken away from a rollout that is gone, or that another one has replaced, and nothing else of its record changes.
// From one that is there it is not, nor from one that cannot be read.
func TestAControllerOutlivesItsRollout(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		write    func(*cluster)
		released bool
	}{
		"gone":    {func(*cluster) {}, true},
		"another": {func(c *cluster) { c.rollout("r2", rollout.Progressing) }, true},
		"there":   {func(c *cluster) { c.rollout("r1", rollout.Progressing) }, false},
		"paused":  {func(c *cluster) { c.rollout("r1", rollout.Paused) }, false},
		"unreadable": {func(c *cluster) {
			if _, err := c.client.Commit(c.t.Context(), []consul.Op{consul.Set(c.store.Keys().Rollouts.Key("web"), []byte("{"))}); err != nil {
				c.t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			c.apply("web-r1", testManifest("web", 0), func(r *rc.RC) {
				r.Mutator, r.InPlace = "web/r1", &rc.InPlace{Limit: 0}
				r.Service = &rc.Service{Name: "web", Revision: 1}
			})
			before := c.record("web-r1")
			tt.write(c)
			c.farm("f1")
			c.run("web-r1", 1)
			if tt.released {
				consultest.Eventually(t, soon, func() error {
					if c.record("web-r1").Mutator != "" {
						return errors.New("a rollout is in charge")
					}
					return nil
				})
				c.conditionIs("web-r1", rc.RolloutGone, true)
				consultest.Eventually(t, soon, func() error {
					all, _, err := c.store.ListAudit(t.Context(), store.AuditFilter{})
					for _, a := range all {
						if a.What == "release" && a.RCID == "web-r1" {
							return err
						}
					}
					return errors.Join(errors.New("no audit record"), err)
				})
			} else {
				c.conditionIs("web-r1", rc.RolloutGone, false)
			}
			after := c.record("web-r1")
			if (after.Mutator == "") != tt.released || after.Generation != before.Generation || after.InPlace == nil {
				t.Errorf("%+v", after)
			}
			if tt.released { // and with the limit the condition goes
				c.apply("web-r1", testManifest("web", 0), func(r *rc.RC) { r.InPlace = nil })
				c.conditionIs("web-r1", rc.RolloutGone, false)
			}
		})
	}
}

// An upgrade in place goes as far as its limit, and back as far as a lower one. New replicas get the manifest that is their turn, and one
// of a lost machine keeps its own.
func TestInPlaceKeepsToItsLimit(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, name := range []string{"n1", "n2"} {
		c.node(name, nil, nil)
	}
	c.rollout("r1", rollout.Progressing)
	c.farm("f1")
	former := c.formerDigest()
	set := func(n, limit int) {
		c.apply("web-r1", testManifest("web2", 0), func(r *rc.RC) {
			zero := 0
			r.ReplicaGroups[0].Count, r.MinAvailable = &n, &zero
			r.Mutator, r.InPlace = "web/r1", &rc.InPlace{From: former, Limit: limit}
		})
	}
	updated := func(total, want int) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			st, err := c.store.Statuses.Get(t.Context(), store.Default, "web-r1")
			if s := st.Value; err == nil && (s.Updated != want || s.UpdatedAvailable != want || s.Available != total || !s.Is(rc.Converged)) {
				err = fmt.Errorf("%+v", s)
			}
			return err
		})
	}
	c.apply("web-r1", testManifest("web", 0), func(r *rc.RC) {
		n := 3
		r.ReplicaGroups[0].Count = &n
	})
	c.converged("web-r1", 3)
	set(3, 2)
	updated(3, 2)
	set(5, 2)
	updated(5, 2)
	set(5, 1)
	updated(5, 1)
	set(6, 6)
	updated(6, 6)
	set(6, 0)
	updated(6, 0)
}

// A pod on a drained node stays while a rollout moves, and goes while it is paused.
func TestADrainWaitsForARolloutThatMoves(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.rollout("r1", rollout.Progressing)
	c.farm("f1")
	c.apply("web-r1", testManifest("web", 0), func(r *rc.RC) { r.Mutator = "web/r1" })
	c.converged("web-r1", 1)
	c.node("n2", nil, nil)
	c.drain("n1", true)
	c.condition("web-r1", rc.Blocked, true, "rollout web/r1 is in charge")
	c.rollout("r1", rollout.Paused)
	if err := c.store.Ring(t.Context(), "web-r1"); err != nil {
		t.Fatal(err)
	}
	c.empty("n1")
}

// Pods stand by from the start, take their name and leave it again, without a stop, and no more leave it at once than the minimum allows.
func TestStandingBy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	var mu sync.Mutex
	most := 0
	c.faultyFarm("f1", &faulty{commit: func(b *store.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		leave := 0
		for _, w := range b.Pods {
			if w.Placement != nil && w.Placement.Standby && w.Index != 0 {
				leave++
			}
		}
		most = max(most, leave)
		return nil
	}}, nil)
	set := func(standby bool, least int) {
		c.apply("web-r1", testManifest("web", 0), func(r *rc.RC) {
			n := 3
			r.ReplicaGroups[0].Count, r.MinAvailable = &n, &least
			r.Service = &rc.Service{Name: "web", Revision: 1, Standby: standby}
		})
	}
	standing := func(want int) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			st, err := c.store.Statuses.Get(t.Context(), store.Default, "web-r1")
			if s := st.Value; err == nil && (s.StandingBy != want || s.Available != 3 || s.ObservedGeneration != c.record("web-r1").Generation) {
				err = fmt.Errorf("%+v", s)
			}
			return err
		})
	}
	set(true, 1)
	standing(3)
	set(false, 1)
	standing(0)
	set(true, 1)
	standing(2)
	c.conditionIs("web-r1", rc.WaitsForService, true)
	set(true, 0)
	standing(3)
	mu.Lock()
	defer mu.Unlock()
	if most != 2 {
		t.Errorf("%d left their name at once, want 2", most)
	}
}
