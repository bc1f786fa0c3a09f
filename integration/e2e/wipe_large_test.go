package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// wipeLarge: the whole prefix is deleted while a node runs far more pods than fit into its record, beside an empty
// node. The farm places no pod until it knows all these pods. Every pod is adopted, and no pod is placed twice or
// stopped.
func wipeLarge(e *env) {
	const pods = 400
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		e.t.Fatal(err)
	}
	e.startConsul("")
	cheap := []string{"--slots", fmt.Sprint(2 * pods), "--isolation", "off"}
	e.preparer(1, cheap...)
	e.farm("f1", "")
	e.rcctl(fmt.Sprintf(`name: crowd
replicas: %d
pod:
  version: 1
  id: crowd
  min_ready: 0s
  launchables:
  - name: sleep
    artifact: {kind: exec, path: %q}
    args: ["100000"]
    stop_grace: 1s
`, pods, sleep), "apply", "-f", "-")
	id := e.rcID("crowd")
	e.within(2*limit, func() error { return e.converged(id, pods) })
	e.preparer(2, cheap...)
	e.within(limit, func() error {
		if n := e.nodes()["n2"]; n.Session == "" || n.Value.Epoch == "" {
			return fmt.Errorf("n2 has not reported: %+v", n.Value)
		}
		return nil
	})
	const synced = "every living node has reported"
	processes, saved, before := e.processes(), e.saved(), strings.Count(e.log("f1"), synced)
	if len(processes) != pods {
		e.t.Fatalf("%d processes, want %d", len(processes), pods)
	}

	if _, err := e.client.Commit(e.t.Context(), []consul.Op{consul.DeleteTree(store.DefaultPrefix)}); err != nil {
		e.t.Fatal(err)
	}
	e.within(limit, func() error { return e.orphans(map[string]int{"n1": pods, "n2": 0}) })
	e.within(limit, func() error { // after this, a farm that does not know all pods would place some of them again
		if n := strings.Count(e.log("f1"), synced); n <= before {
			return fmt.Errorf("the nodes were synced %d times", n)
		}
		return nil
	})
	e.writeBack(saved, "rcs/", "names/", "manifests/")
	same := func() {
		now := e.processes()
		for key, pid := range processes {
			if now[key] != pid {
				e.t.Fatalf("%s had pid %d, now %d", key, pid, now[key])
			}
		}
		if len(now) != pods {
			e.t.Fatalf("%d processes run, want %d", len(now), pods)
		}
	}
	e.within(limit, func() error {
		same()
		return e.adopted(id, pods)
	})
	e.within(limit, func() error {
		same()
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && (st.Value.Is(rc.Holding) || st.Value.Available != pods) {
			err = fmt.Errorf("status %+v", st.Value)
		}
		if err != nil {
			return err
		}
		return e.orphans(map[string]int{"n1": 0, "n2": 0})
	})
	for key, p := range e.placements(id) {
		if p.Value.Node != "n1" {
			e.t.Errorf("%s is placed on %s", key, p.Value.Node)
		}
	}
	same()
	e.oneCopyEach()
	if keys, err := e.client.Keys(e.t.Context(), store.DefaultPrefix); err != nil ||
		strings.Contains(strings.Join(keys, "\n"), "/orphans/") {
		e.t.Errorf("pages of orphans are left (%v): %v", err, keys)
	}
}

func (e *env) orphans(want map[string]int) error {
	out, err := e.tryRcctl("", "nodes", "-o", "json")
	if err != nil {
		return err
	}
	var nodes []struct {
		Name    string
		Alive   bool
		Orphans int
	}
	if err := json.Unmarshal([]byte(out), &nodes); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	seen := 0
	for _, n := range nodes {
		if count, known := want[n.Name]; known && n.Alive && n.Orphans == count {
			seen++
		}
	}
	if seen != len(want) {
		return fmt.Errorf("orphans by node: %+v, want %v", nodes, want)
	}
	return nil
}
