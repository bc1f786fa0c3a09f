package farm_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// own waits until a pod has these own labels, in its placement and in its intent.
func (c *cluster) own(id pod.Identity, want map[string]string) pod.Placement {
	c.t.Helper()
	var rec store.Rec[pod.Placement]
	consultest.Eventually(c.t, soon, func() (err error) {
		if rec, err = c.store.Pods.Get(c.t.Context(), store.Consistent, id.String()); err != nil {
			return err
		}
		in, err := c.store.Intents.Get(c.t.Context(), store.Consistent, rec.Value.Node, id.String())
		if err == nil && (!maps.Equal(rec.Value.OwnLabels, want) || !maps.Equal(in.Value.Labels, rec.Value.Labels) ||
			in.Value.Revision != rec.Value.Revision) {
			err = fmt.Errorf("placement %+v, intent %+v", rec.Value, in.Value)
		}
		for key, value := range want {
			if err == nil && rec.Value.Labels[key] != value {
				err = fmt.Errorf("placement %+v", rec.Value)
			}
		}
		return err
	})
	return rec.Value
}

// Only the pod that a request names gets its labels. When the pod is placed again, on another node or after a stop, it
// has no own labels.
func TestLabelsOfOnePod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	first, second := pod.Identity{RCID: "web", Role: "main"}, pod.Identity{RCID: "web", Role: "main", Index: 1}
	asks := labels.NewApplicator(c.store, "test")
	before := c.own(first, nil)
	done, err := asks.SetLabels(t.Context(), labels.PodObject(first), map[string]string{"debug": "yes", "x": "1"})
	if err != nil || done.Request == "" ||
		!slices.Equal(done.Lines, []string{"labels.debug: none -> yes", "labels.x: none -> 1"}) {
		t.Fatalf("%+v, %v", done, err)
	}
	after := c.own(first, map[string]string{"debug": "yes", "x": "1"})
	if after.Revision <= before.Revision || after.Digest != before.Digest || !after.ChangedAt.Equal(before.ChangedAt) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	c.own(second, nil)
	c.answers("web")
	if done, err = asks.RemoveLabels(t.Context(), labels.PodObject(first), "x", "nothing"); err != nil ||
		len(done.Lines) != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	c.own(first, map[string]string{"debug": "yes"})
	found, err := asks.GetLabels(t.Context(), labels.PodObject(first))
	if err != nil || found.Labels["debug"] != "yes" || found.Labels[pod.PodIDLabel] != "web" ||
		!maps.Equal(found.Set, map[string]string{"debug": "yes"}) {
		t.Errorf("%+v, %v", found, err)
	}

	c.node("n2", nil, nil)
	c.drain("n1", true)
	consultest.Eventually(t, soon, func() error {
		rec, err := c.store.Pods.Get(t.Context(), store.Consistent, first.String())
		if err == nil && rec.Value.Node != "n2" {
			err = fmt.Errorf("the pod is still on %s", rec.Value.Node)
		}
		return err
	})
	if moved := c.own(first, nil); moved.Labels["debug"] != "" {
		t.Errorf("after the move the placement is %+v", moved)
	}
}

// answers waits until all requests to a controller's owner are gone.
func (c *cluster) answers(id string) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		left, bad, err := c.store.Requests.List(c.t.Context(), store.Consistent, id)
		if err = errors.Join(append(bad, err)...); err == nil && len(left) > 0 {
			err = fmt.Errorf("left are %+v", left)
		}
		return err
	})
}

// The next owner carries out the requests that were made while the controller had no owner, in their order. A pod whose
// placement was lost runs, is adopted, and then gets its labels. A request about a pod that has stopped is void, and is
// removed.
func TestLabelsAreRequestedWithoutAnOwner(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	stop := c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	stop()
	first, second := pod.Identity{RCID: "web", Role: "main"}, pod.Identity{RCID: "web", Role: "main", Index: 1}
	asks := labels.NewApplicator(c.store, "test")
	for i, set := range []map[string]string{{"x": "1", "y": "1"}, {"x": "2"}} {
		if _, err := asks.SetLabels(t.Context(), labels.PodObject(first), set); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	if done, err := asks.SetLabels(t.Context(), labels.PodObject(first), map[string]string{"x": "2"}); err != nil ||
		len(done.Lines) > 0 {
		t.Errorf("the same request again: %+v, %v", done, err)
	}
	if _, err := asks.SetLabels(t.Context(), labels.PodObject(second), map[string]string{"x": "1"}); err != nil {
		t.Fatal(err)
	}
	c.remove(c.store.Keys().Pods.Key(second.String()))
	c.remove(c.store.Keys().Intents.Key("n1", second.String()))
	stop = c.farm("f2")
	c.own(first, map[string]string{"x": "2", "y": "1"})
	c.own(second, map[string]string{"x": "1"})
	c.answers("web")
	stop()
	done, err := asks.SetLabels(t.Context(), labels.PodObject(second), map[string]string{"x": "3"})
	if err != nil {
		t.Fatal(err)
	}
	c.apply("web", testManifest("web", 0), replicas(1))
	c.farm("f3")
	c.answers("web")
	consultest.Eventually(t, soon, func() error {
		acts, _, err := c.store.ListAudit(t.Context(), store.AuditFilter{RCID: "web"})
		if err == nil && !slices.ContainsFunc(acts, func(a store.Audit) bool {
			return slices.ContainsFunc(a.Changes, func(line string) bool {
				return strings.HasPrefix(line, "request "+done.Request+" ") &&
					strings.Contains(line, " is void: the pod ")
			})
		}) {
			err = fmt.Errorf("no audit record has that %s is void: %+v", done.Request, acts)
		}
		return err
	})
}

// Own labels are given to pods during a rollout of their controller.
func TestLabelsOfOnePodDuringAChange(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(3))
	c.converged("web", 3)
	asks := labels.NewApplicator(c.store, "test")
	m := testManifest("web", 0)
	m.Labels = map[string]string{"version": "2"}
	c.apply("web", m, func(r *rc.RC) { r.PodLabels = map[string]string{"team": "a"} })
	for i := range 3 {
		id := pod.Identity{RCID: "web", Role: "main", Index: i}
		if _, err := asks.SetLabels(t.Context(), labels.PodObject(id),
			map[string]string{"nr": fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	c.converged("web", 3)
	c.answers("web")
	for i := range 3 {
		p := c.own(pod.Identity{RCID: "web", Role: "main", Index: i}, map[string]string{"nr": fmt.Sprint(i)})
		if p.Labels["version"] != "2" || p.Labels["team"] != "a" {
			t.Errorf("%+v", p)
		}
	}
}
