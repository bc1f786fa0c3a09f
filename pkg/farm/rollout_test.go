package farm_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// record reads a controller.
func (c *cluster) record(id string) rc.RC {
	c.t.Helper()
	rec, err := c.store.RCs.Get(c.t.Context(), store.Consistent, id)
	if err != nil {
		c.t.Fatal(err)
	}
	return rec.Value
}

// formerDigest writes two manifests that differ only in their ids, and returns the digest of the first.
func (c *cluster) formerDigest() string {
	c.t.Helper()
	canonical, err := testManifest("web", 0).Canonical()
	if err != nil {
		c.t.Fatal(err)
	}
	return digestOf(canonical)
}

// If an older store has the controller of a pre_deploy without its rollout, the controller starts no pod, because its
// program would run a second time.
func TestAPreDeployWithoutItsRolloutStartsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	id := rc.PreDeployID(webUnit, 1)
	c.apply(id, testManifest("web", 0), func(*rc.RC) {})
	c.farm("f1")
	c.condition(id, rc.Converged, false, "the controller is disabled: nothing is placed and nothing removed")
	if placed, _, err := c.store.Pods.List(t.Context(), store.Consistent, id); err != nil || len(placed) > 0 {
		t.Errorf("placed %+v, %v", placed, err)
	}
}

// If the rollout that would move the limit of an upgrade in place is gone, the status reports this. If the rollout
// exists and cannot be read, the status does not report it as gone.
func TestALimitOutlivesItsRollout(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"gone": true, "unreadable": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			if !gone {
				c.rolls(webUnit)
			}
			c.apply(webR1, testManifest("web", 0), func(r *rc.RC) {
				r.InPlace, r.Service = &rc.InPlace{Limit: 0}, &rc.Service{Name: "web", Revision: 1}
			})
			before := c.record(webR1)
			c.farm("f1")
			c.run(webR1, 1)
			c.conditionIs(webR1, rc.RolloutGone, gone)
			c.conditionIs(webR1, rc.RolloutTrouble, !gone)
			if after := c.record(webR1); after.Generation != before.Generation || after.InPlace == nil {
				t.Errorf("%+v", after)
			}
			c.apply(webR1, testManifest("web", 0), func(r *rc.RC) { r.InPlace = nil })
			c.conditionIs(webR1, rc.RolloutGone, false)
		})
	}
}

// An upgrade in place goes up to its limit, and back to a lower one. A new replica gets the manifest that the limit
// allows for it, and a replica of a lost machine keeps its own.
func TestInPlaceKeepsToItsLimit(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, name := range []string{"n1", "n2"} {
		c.node(name, nil, nil)
	}
	c.rolls("web-r1")
	c.farm("f1")
	former := c.formerDigest()
	set := func(n, limit int) {
		c.apply("web-r1", testManifest("web2", 0), func(r *rc.RC) {
			zero := 0
			r.ReplicaGroups[0].Count, r.MinAvailable = &n, &zero
			r.InPlace, r.Service = &rc.InPlace{From: former, Limit: limit}, &rc.Service{Name: "web", Revision: 1}
		})
	}
	updated := func(total, want int) {
		t.Helper()
		consultest.Eventually(t, soon, func() error {
			st, err := c.store.Statuses.Get(t.Context(), store.Default, "web-r1")
			if s := st.Value; err == nil && (s.Updated != want || s.UpdatedAvailable != want || s.Available != total ||
				!s.Is(rc.Converged)) {
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

// Pods stand by from the start, take over the service's name and give it up again, all without a stop. No more of them
// give it up at the same time than the minimum allows.
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
			if s := st.Value; err == nil &&
				(s.StandingBy != want || s.Available != 3 || s.ObservedGeneration != c.record("web-r1").Generation) {
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
		t.Errorf("%d gave up their name at the same time, want 2", most)
	}
}
