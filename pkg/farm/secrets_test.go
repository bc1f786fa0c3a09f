package farm_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/scheduler/remote"
)

// A scheduler in another process gets the manifest of the pods for which it chooses nodes, of each group and of a
// pre_deploy. No name or value of env and config leaves the farm, no matter where in a document it is.
func TestASchedulerGetsNoSecrets(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if _, err := c.store.EnsureSchema(t.Context()); err != nil { // before an operator makes it, with the oldest gate
		t.Fatal(err)
	}
	c.node("n1", nil, nil)
	var mu sync.Mutex
	var bodies []string
	inner := remote.Handler(new(scheduler.ByLabel))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		bodies = append(bodies, string(body)+fmt.Sprint(r.URL, r.Header))
		mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		inner.ServeHTTP(w, r)
	}))
	defer server.Close()
	asks, err := remote.New(remote.Config{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer asks.Close()
	_, stop := c.bookedFarm("f1", asks, &recorder{}, &faulty{})
	defer stop() // before the server

	const pod = `"pod": {"version": 1, "id": "%[1]s", "config": {"hush-a": {"deep": ["hush-b"]}}, "launchables": [
		{"name": "one", "artifact": {"kind": "exec", "path": "/bin/shown-one"}, "env": {"HUSH_C": "hush-d"}},
		{"name": "two", "artifact": {"kind": "exec", "path": "/bin/shown-two"}, "env": {"HUSH_E": "hush-f"}}]}`
	for name, fields := range map[string]string{
		"groups": `"replica_groups": [{"role": "plain", "count": 1}, {"role": "other", "count": 1, "env": {"HUSH_G": "hush-h"},
			"resources": {"pids": 77}}],`,
		"before": `"replicas": 1, "pre_deploy": {"command": "/bin/shown-before", "env": {"HUSH_I": "hush-j"}},`,
	} {
		spec, err := record.Decode([]byte(`{"name": "` + name + `", ` + fields + fmt.Sprintf(pod, name) + `}`))
		if err != nil {
			t.Fatal(err)
		}
		resolved, err := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		d := plan.NewDeployment(&deploy.Client{Store: c.store, Who: "test"}, *resolved, nil)
		d.Detach = true
		if _, err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	consultest.Eventually(t, soon, func() error {
		mu.Lock()
		defer mu.Unlock()
		all := strings.Join(bodies, "\n")
		for _, shown := range []string{"/bin/shown-one", "/bin/shown-two", `"pids":77`, `"id":"before-pre-deploy"`} {
			if !strings.Contains(all, shown) {
				return fmt.Errorf("the scheduler did not get %s in %d questions", shown, len(bodies))
			}
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	for _, body := range bodies {
		if lower := strings.ToLower(body); strings.Contains(lower, "hush") || strings.Contains(lower, `"env"`) ||
			strings.Contains(lower, `"config"`) {
			t.Errorf("the scheduler got %s", body)
		}
	}
}
