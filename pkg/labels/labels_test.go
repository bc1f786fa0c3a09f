package labels_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	kube "k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestMain(m *testing.M) { os.Exit(consultest.Main(m)) }

func TestFixedRC(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                      "",
		"app=web":                               "",
		"replication_controller_id=a":           "a",
		"replication_controller_id==a":          "a",
		"replication_controller_id in (a)":      "a",
		"app=web,replication_controller_id=a,x": "a",
		"replication_controller_id in (a,b)":    "",
		"replication_controller_id!=a":          "",
		"replication_controller_id notin (a)":   "",
		"replication_controller_id":             "",
		"!replication_controller_id":            "",
	} {
		sel, err := rc.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := labels.FixedRC(sel); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// counting is a store that records which placements are read.
type counting struct {
	*store.Store
	read []string
}

// List reads placements, and records which placements are read.
func (c *counting) List(ctx context.Context, level store.Level,
	below ...string,
) ([]store.Rec[pod.Placement], []error, error) {
	if len(below) == 0 {
		c.read = append(c.read, "pods")
	} else {
		c.read = append(c.read, fmt.Sprintf("pods/%s consistent=%t", below[0], level == store.Consistent))
	}
	return c.Pods.List(ctx, level, below...)
}

func (c *counting) labeler() labels.Labeler {
	return labels.Of(labels.Records{Placements: c, Nodes: &c.Nodes, NodeOps: &c.NodeOps})
}

// cluster writes records about pods of three controllers on two nodes, like farms, preparers and operators write them.
func cluster(t *testing.T) (records *counting, put func(key string, value any)) {
	t.Helper()
	client, prefix := consultest.Client(t)
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	put = func(key string, value any) {
		t.Helper()
		data, isBytes := value.([]byte)
		if !isBytes {
			if data, err = json.Marshal(value); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := client.Commit(t.Context(), []consul.Op{consul.Set(key, data)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, placed := range []pod.Placement{
		{
			Identity: pod.Identity{RCID: "a", Role: "main", Index: 0}, Node: "n1",
			Labels: map[string]string{"app": "web", "tier": "front", pod.RCIDLabel: "a"},
		},
		{
			Identity: pod.Identity{RCID: "a", Role: "main", Index: 1}, Node: "n2",
			Labels: map[string]string{"app": "web", "tier": "front"},
		},
		{Identity: pod.Identity{RCID: "b", Role: "main", Index: 0}, Node: "n1", Labels: map[string]string{"app": "db"}},
		{
			Identity: pod.Identity{RCID: "ab", Role: "main", Index: 0}, Node: "n2",
			Labels: map[string]string{"app": "web"}, RunState: pod.Stopped,
		},
	} {
		placed.PodID, placed.Digest, placed.Revision = placed.Labels["app"], fmt.Sprintf("%064d", i), 1
		if placed.RunState == "" {
			placed.RunState = pod.Running
		}
		put(keys.Pods.Key(placed.Identity.String()), placed)
	}
	put(keys.Nodes.Key("n1"), node.Node{Name: "n1", Labels: map[string]string{"rack": "r1", "disk": "ssd"}})
	put(keys.Nodes.Key("n2"), node.Node{Name: "n2", Labels: map[string]string{"rack": "r2", "disk": "ssd"}})
	put(keys.NodeOps.Key("n2"), node.Ops{Name: "n2", Labels: map[string]string{"rack": "r1"}})
	return &counting{Store: store.New(client, keys)}, put
}

// Selectors find pods and nodes by all their labels. If a selector fixes the controller, the placements of other
// controllers are not read.
func TestMatches(t *testing.T) {
	t.Parallel()
	records, _ := cluster(t)
	finds := records.labeler()
	for _, tt := range []struct {
		from                 labels.LabelMatcher
		selector, want, read string
	}{
		{finds.Pods(), "", "a/main.0@n1 a/main.1@n2 ab/main.0@n2 b/main.0@n1 ", "[pods]"},
		{finds.Pods(), "app=web", "a/main.0@n1 a/main.1@n2 ab/main.0@n2 ", "[pods]"},
		{finds.Pods(), "app notin (web)", "b/main.0@n1 ", "[pods]"},
		{finds.Pods(), "tier notin (front)", "ab/main.0@n2 b/main.0@n1 ", "[pods]"}, // also pods without the label
		{finds.Pods(), "tier", "a/main.0@n1 a/main.1@n2 ", "[pods]"},
		{finds.Pods(), "pod_id in (db)", "b/main.0@n1 ", "[pods]"},
		{finds.Pods(), "replication_controller_id=a", "a/main.0@n1 a/main.1@n2 ", "[pods/a consistent=true]"},
		{finds.Pods(), "replication_controller_id=a,app=db", "", "[pods/a consistent=true]"},
		{finds.Pods(), "replication_controller_id=a,replication_controller_id=b", "", "[pods/a consistent=true]"},
		{finds.Pods(), "replication_controller_id in (a,b)", "a/main.0@n1 a/main.1@n2 b/main.0@n1 ", "[pods]"},
		{finds.Pods(), "replication_controller_id=nobody", "", "[pods/nobody consistent=true]"},
		{finds.Nodes(), "", "n1@n1 n2@n2 ", "[]"},
		{finds.Nodes(), "rack=r1", "n1@n1 n2@n2 ", "[]"},
		{finds.Nodes(), "rack=r2", "", "[]"},
		{finds.Nodes(), "!gpu,disk", "n1@n1 n2@n2 ", "[]"},
	} {
		sel, err := rc.ParseSelector(tt.selector)
		if err != nil {
			t.Fatal(err)
		}
		records.read = nil
		found, err := tt.from.GetMatches(t.Context(), sel)
		got := ""
		for _, m := range found {
			got += m.ID + "@" + m.Node + " "
			if !sel.Matches(m.Labels) || (m.Pod != nil) != (m.ID != m.Node) {
				t.Errorf("%s: %+v", tt.selector, m)
			}
		}
		if read := fmt.Sprint(records.read); err != nil || got != tt.want || read != tt.read {
			t.Errorf("%s: %q, %v after reading %s; want %q after %s", tt.selector, got, err, read, tt.want, tt.read)
		}
	}
	records.read = nil
	if found, err := finds.Pods().GetMatches(t.Context(), kube.Nothing()); err != nil ||
		len(found) != 0 || len(records.read) != 0 {
		t.Errorf("nothing: %v, %v after reading %v", found, err, records.read)
	}
}

// The example lists all pods of an application, except the pods of one controller.
func ExampleLabelMatcher() {
	list := func(ctx context.Context, finds labels.Labeler) error {
		selector, err := kube.Parse("app=web,replication_controller_id!=01m81nvfj7av9tvd8yd4gk9qsw")
		if err != nil {
			return err
		}
		found, err := finds.Pods().GetMatches(ctx, selector)
		for _, p := range found {
			fmt.Println(p.ID, "on", p.Node, p.Labels)
		}
		return err
	}
	_ = list // with labels.New(store)
}

// If records cannot be read, GetMatches returns an error together with the readable matches.
func TestUnreadableRecordsAreErrors(t *testing.T) {
	t.Parallel()
	records, put := cluster(t)
	put(records.Keys().Pods.Key(pod.Identity{RCID: "a", Role: "main", Index: 2}.String()), []byte("{"))
	put(records.Keys().NodeOps.Key("n1"), []byte("{"))
	for name, m := range map[string]labels.LabelMatcher{
		"pods":  records.labeler().Pods(),
		"nodes": records.labeler().Nodes(),
	} {
		found, err := m.GetMatches(t.Context(), kube.Everything())
		var corrupt *store.CorruptError
		if !errors.As(err, &corrupt) || len(found) < 2 {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := records.labeler().Pods().GetMatches(ctx, kube.Everything()); err == nil || len(found) != 0 {
		t.Errorf("without an answer: %v, %v", found, err)
	}
}
