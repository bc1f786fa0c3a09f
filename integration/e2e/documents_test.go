package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (e *env) kept(replicas int, version, fields string) string {
	e.t.Helper()
	return e.document(web{replicas: replicas, version: version, fields: fields}) + "  volumes: [{name: data}]\n"
}

func (e *env) marked(id string) map[string]string {
	e.t.Helper()
	nodes := map[string]string{}
	for name, rec := range e.placements(id) {
		nodes[name] = rec.Value.Node
		if err := os.WriteFile(e.mark(id, name, rec.Value.Node), []byte(name), 0o600); err != nil {
			e.t.Fatal(err)
		}
	}
	return nodes
}

func (e *env) mark(id, name, node string) string {
	return filepath.Join(e.onNode(node, "volumes", id+"."+name, "data"), "mark")
}

func (e *env) withData(id string, nodes map[string]string, when string) {
	e.t.Helper()
	placements := e.placements(id)
	if len(placements) != len(nodes) {
		e.t.Errorf("%s: %d pods, want %d", when, len(placements), len(nodes))
	}
	for name, rec := range placements {
		data, err := os.ReadFile(e.mark(id, name, nodes[name]))
		if rec.Value.Node != nodes[name] || err != nil || string(data) != name {
			e.t.Errorf("%s: %s is on %s, want %s with its data: %q, %v", when, name, rec.Value.Node, nodes[name],
				data, err)
		}
	}
}

// volumeRedeploy: the pods of a service with a volume are upgraded and rolled back where their data is, although the
// document does not ask for that. A strategy that would replace the pods is refused.
func volumeRedeploy(e *env) {
	e.site(3, 1)
	deploy := []string{"deploy", "-f", "-", "--yes"}
	e.rcctl(e.kept(3, "1", ""), deploy...)
	e.runs(map[string]int{"1": 3})
	id := e.rcID("web-r1")
	nodes := e.marked(id)
	for _, version := range []string{"2", "3"} {
		e.rcctl(e.kept(3, version, ""), deploy...)
		e.runs(map[string]int{version: 3})
		e.withData(id, nodes, "version "+version)
	}
	out, err := e.tryRcctl(e.kept(3, "4", ""), append(deploy, "--strategy", "availability")...)
	if err == nil || !strings.Contains(err.Error(), "exit status 4") ||
		!strings.Contains(out, "pods have volumes and strategy is not dynamic") {
		e.t.Errorf("a strategy that replaces pods: %v\n%s", err, out)
	}
	e.rcctl("", "rollback", "web", "--yes")
	e.runs(map[string]int{"2": 3})
	e.withData(id, nodes, "rolled back")
}

// drainVolume: a drain leaves a pod where its data is, and prints that. If the document asks for dynamic, deploy and
// drain print which data is left behind, and the pod moves.
func drainVolume(e *env) {
	e.site(2, 1)
	deploy := []string{"deploy", "-f", "-", "--yes"}
	e.rcctl(e.kept(1, "1", ""), deploy...)
	e.runs(map[string]int{"1": 1})
	id := e.rcID("web-r1")
	nodes := e.marked(id)
	before, node := e.processes(), nodes["main.0"]
	says := func(out, text string) {
		e.t.Helper()
		if !strings.Contains(out, text) {
			e.t.Errorf("%q is not in\n%s", text, out)
		}
	}
	says(e.rcctl("", "node", "drain", node),
		"these pods remain on "+node+" with the data of their volumes: web-main-0 (data)")
	out, err := e.tryRcctl("", "node", "drain", node, "--wait", "--timeout", "5s")
	if err == nil {
		e.t.Errorf("%s is drained\n%s", node, out)
	}
	says(out, "its controller is static")
	e.sameProcesses(before, "drained")
	e.withData(id, nodes, "drained")
	says(e.rcctl("", "scale", "web", "2", "--yes"), "rc web-r1: 2 of 2 replicas available") // despite the drain
	e.rcctl("", "node", "undrain", node)

	const dynamic = "strategy: dynamic\n"
	says(e.rcctl(e.kept(2, "1", dynamic), deploy...), "moves pods and leaves the data of their volumes behind: data")
	says(e.rcctl("", "node", "drain", node, "--wait"),
		"these pods move and leave the data of their volumes on "+node+": web-main-0 (data)")
	e.runs(map[string]int{"1": 2})
	for name, rec := range e.placements(id) {
		if rec.Value.Node == node {
			e.t.Error(fmt.Errorf("%s is still on %s", name, node))
		}
	}
	if _, err := os.Stat(e.mark(id, "main.0", node)); err != nil {
		e.t.Errorf("the data that was left behind: %v", err)
	}
}

// podLabels: pods that run get the labels of a new document without a restart. Labels that the new document lacks are
// removed from the pods.
func podLabels(e *env) {
	e.site(2, 1)
	deploy := []string{"deploy", "-f", "-", "--yes"}
	labelled := func(labels string) string {
		return e.document(web{replicas: 2, version: "1", fields: "pod_labels: {" + labels + "}\n"})
	}
	have := func(selector string, want int) {
		e.t.Helper()
		e.within(limit, func() error {
			var found []json.RawMessage
			e.decode([]byte(e.rcctl("", "pods", "-l", selector, "-o", "json")), &found)
			if len(found) != want {
				return fmt.Errorf("%d pods have the labels %s, want %d", len(found), selector, want)
			}
			return nil
		})
	}
	e.rcctl(labelled("team: a"), deploy...)
	e.runs(map[string]int{"1": 2})
	have("team=a", 2)
	before := e.processes()
	e.rcctl(labelled("team: b, tier: web"), deploy...)
	have("team=b,tier=web", 2)
	e.rcctl(labelled("tier: web"), deploy...)
	have("tier=web,!team", 2)
	e.sameProcesses(before, "labelled anew")

	e.rcctl("", "label", "pod", "web-main-0", "debug=yes", "tier=own", "--wait", "--timeout", limit.String())
	have("debug=yes,tier=own", 1)
	have("tier=web,!debug", 1)
	e.rcctl("", "label", "pod", "web-main-0", "tier-")
	have("debug=yes,tier=web", 1)
	e.rcctl(labelled("tier: web, team: c"), deploy...)
	have("team=c", 2)
	have("debug=yes,team=c", 1)
	e.rcctl("", "label", "pod", "web-main-0", "debug-")
	have("team=c,!debug", 2)
	out := e.rcctl("", "label", "pod", "web-main-0", "debug-")
	if !strings.Contains(out, "unchanged; nothing was written") {
		e.t.Errorf("a label that is not there is removed: %s", out)
	}
	e.sameProcesses(before, "each with a label of its own")
	if out, err := e.tryRcctl("", "label", "rc", "web-r1", "x=y"); err == nil ||
		!strings.Contains(err.Error()+out, "change labels in the service's document") {
		e.t.Errorf("a revision is labelled: %v\n%s", err, out)
	}
}

// deployWaits: rcctl waits for a change of counts alone, and shows its progress. If there is not enough capacity, rcctl
// ends after --timeout with exit code 5. With --detach it ends at once.
func deployWaits(e *env) {
	e.site(3, 1)
	w := web{replicas: 2, version: "1", fields: "max_per_node: 4\n"}
	e.deployed(w)
	w.replicas = 12
	out := e.rcctl(e.document(w), "deploy", "-f", "-", "--yes")
	if got := e.versions()["1"]; got != 12 || !strings.Contains(out, "rc web-r1: 12 of 12 replicas available") {
		e.t.Errorf("%d of 12 pods serve when deploy returns, which said\n%s", got, out)
	}
	out = e.rcctl("", "scale", "web", "3", "--yes")
	if got := e.versions()["1"]; got != 3 {
		e.t.Errorf("%d of 3 pods serve when scale returns, which said\n%s", got, out)
	}
	out, err := e.tryRcctl("", "scale", "web", "13", "--yes", "--timeout", "10s")
	if err == nil || !strings.Contains(err.Error(), "exit status 5") || !strings.Contains(out, "not done after 10s") ||
		!strings.Contains(out, "12 of 13") {
		e.t.Errorf("more pods than there is room for: %v\n%s", err, out)
	}
	w.replicas = 12
	out = e.rcctl(e.document(w), "deploy", "-f", "-", "--yes", "--detach")
	if !strings.Contains(out, "next: rcctl rc status web-r1 --watch") {
		e.t.Errorf("detached, it said\n%s", out)
	}
	e.runs(map[string]int{"1": 12})
}

// planNodes: farms use the nodes that a plan names, for new pods, more pods, fewer pods and a new version. The numbers
// are chosen so that no two nodes are equally good for a pod, because among equally good nodes each farm begins with
// another node.
func planNodes(e *env) {
	e.site(3, 1)
	for _, step := range []struct {
		rc, verb string // the controller, and what the plan does to its pods
		w        web
	}{
		{"web-r1", "run", web{replicas: 3, version: "1", fields: "max_per_node: 3\n"}},
		{"web-r1", "run", web{replicas: 9, version: "1", fields: "max_per_node: 3\n"}},
		{"web-r1", "stop", web{replicas: 6, version: "1", fields: "max_per_node: 3\n"}},
		{"web-r2", "run", web{replicas: 6, version: "2", fields: "max_per_node: 3\n"}},
	} {
		before := e.perNode(step.rc)
		want := e.forecast(e.document(step.w), step.verb, step.rc)
		e.deployed(step.w)
		e.within(limit, func() error {
			got := map[string]int{}
			for name, n := range e.perNode(step.rc) {
				if got[name] = n - before[name]; step.verb == "stop" {
					got[name] = -got[name]
				}
			}
			for name, n := range before {
				if _, has := e.perNode(step.rc)[name]; !has {
					got[name] = n
				}
			}
			maps.DeleteFunc(got, func(_ string, n int) bool { return n == 0 })
			if !maps.Equal(got, want) {
				return fmt.Errorf("%s %d pods of %s: planned on %v, done on %v", step.verb, step.w.replicas, step.rc,
					want, got)
			}
			return nil
		})
	}
}

func (e *env) perNode(name string) map[string]int {
	e.t.Helper()
	on := map[string]int{}
	id, err := e.store.RCIDByName(e.t.Context(), name)
	if errors.Is(err, store.ErrNotFound) {
		return on
	}
	if err != nil {
		e.t.Fatal(err)
	}
	for _, rec := range e.placements(id) {
		on[rec.Value.Node]++
	}
	return on
}

func (e *env) forecast(document, verb, rc string) map[string]int {
	e.t.Helper()
	out, err := e.tryRcctl(document, "plan", "-f", "-", "-o", "json")
	var plans []struct{ Operations []plan.Line }
	if err == nil || !strings.Contains(err.Error(), "exit status 6") || json.Unmarshal([]byte(out), &plans) != nil ||
		len(plans) != 1 {
		e.t.Fatalf("rcctl plan: %v\n%s", err, out)
	}
	on := map[string]int{}
	for _, l := range plans[0].Operations {
		if strings.HasPrefix(l.Text, verb+" ") && strings.HasSuffix(l.Text, " of "+rc) {
			for _, at := range l.Where.Nodes {
				on[at.Node] = at.Pods
			}
		}
	}
	return on
}

// modeChange: a service with counts changes to a pod on each node, and back to counts with a new version. Each time the
// plan names the nodes where pods stop and where pods start, the farm follows the plan, and the service keeps its
// minimum meanwhile.
func modeChange(e *env) {
	e.site(4, 1)
	counts := func(w web) string { return e.document(w) }
	w := web{replicas: 5, version: "1", fields: "max_per_node: 2\n"}
	e.deployed(w)
	before := e.perNode("web-r1")
	each := strings.NewReplacer("replicas: 5\n", "mode: each-node\n", "max_per_node: 2\n", "").Replace(counts(w))
	stops, runs := e.forecast(each, "stop", "web-r1"), e.forecast(each, "run", "web-r1")
	if least := e.least("web-r1", func() { e.rcctl(each, "deploy", "-f", "-", "--yes") }, 4); least < 3 {
		e.t.Errorf("%d pods were available on the way to one on each of 4 nodes", least)
	}
	after := e.perNode("web-r1")
	for n := range 4 {
		name := fmt.Sprintf("n%d", n+1)
		if after[name] != 1 || before[name]-stops[name]+runs[name] != 1 {
			e.t.Errorf("%s had %d pods, the plan stopped %d and ran %d, and it has %d", name, before[name], stops[name],
				runs[name], after[name])
		}
	}
	w = web{replicas: 2, version: "2"}
	if stops = e.forecast(counts(w), "stop", "web-r1"); len(stops) != 2 {
		e.t.Errorf("the plan stops pods on %v", stops)
	}
	if least := e.least("web-r1", func() { e.rcctl(counts(w), "deploy", "-f", "-", "--yes") }, 2); least < 1 {
		e.t.Errorf("%d pods were available on the way to 2", least)
	}
	e.runs(map[string]int{"2": 2})
}

// modeStages: a service with 4 pods on 6 nodes changes to a pod on each node in stages of one pod, and back to counts
// with another version. At least the minimum serves all the time, and at most one stage of pods is on its way. A
// version that does not serve stops at the first stage. Meanwhile all old pods serve unchanged.
func modeStages(e *env) {
	e.site(6, 1)
	const update = "step: 1, stage_timeout: 20s"
	each := func(w web) string {
		return strings.Replace(e.document(w), "replicas: 4\n", "mode: each-node\n", 1)
	}
	w := web{replicas: 4, version: "1", update: update}
	e.deployed(w)
	old := e.processes()

	sick := web{
		replicas: 4, version: "2", update: "step: 1, stage_timeout: 8s", env: map[string]string{"HELLO_SICK": "1"},
	}
	seen := e.watched("web-r1", func() {
		if out, err := e.tryRcctl(each(sick), "deploy", "-f", "-", "--yes"); err == nil ||
			!strings.Contains(err.Error(), "exit status 5") {
			e.t.Errorf("rcctl deploy of a sick version: %v\n%s", err, out)
		}
	}, 4)
	if seen.least < 4 || seen.coming > 1 || seen.most > 5 || len(seen.limits) == 0 || seen.limits[0] > 1 {
		e.t.Errorf("on the way to a sick version on each node: %+v", seen)
	}
	e.sameProcesses(old, "after a sick version")

	w.version = "3"
	out, err := e.tryRcctl(each(w), "plan", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "exit status 6") ||
		!strings.Contains(out, "in 6 stages of up to 1, at least 4 available") {
		e.t.Errorf("rcctl plan: %v\n%s", err, out)
	}
	seen = e.watched("web-r1", func() { e.rcctl(each(w), "deploy", "-f", "-", "--yes") }, 6)
	if seen.least < 4 || seen.coming > 1 ||
		!slices.Equal(seen.limits, []int{0, 1, 2, 3, 4, 5, 6}) && !slices.Equal(seen.limits, []int{1, 2, 3, 4, 5, 6}) {
		e.t.Errorf("on the way to each node: %+v", seen)
	}
	e.onEach("3", "n1", "n2", "n3", "n4", "n5", "n6")

	w.version = "4"
	seen = e.watched("web-r1", func() { e.rcctl(e.document(w), "deploy", "-f", "-", "--yes") }, 4)
	if seen.least < 3 || seen.coming > 1 || seen.most > 6 || seen.limits[len(seen.limits)-1] != 4 {
		e.t.Errorf("on the way to 4 pods: %+v", seen)
	}
	e.runs(map[string]int{"4": 4})
}

// watched is what the test saw of a changing controller: the fewest available pods, the most placed pods, the most of
// these that were unavailable, and the limits of the upgrade in place in their order.
type watched struct {
	least, coming, most int
	limits              []int
}

// least calls do, waits until this number of pods is available, and returns the fewest that it saw meanwhile.
func (e *env) least(name string, do func(), pods int) int {
	e.t.Helper()
	return e.watched(name, do, pods).least
}

func (e *env) watched(name string, do func(), pods int) watched {
	e.t.Helper()
	id, seen := e.rcID(name), watched{least: 1000}
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			if st, err := e.store.Statuses.Get(context.Background(), store.Consistent, id); err == nil {
				seen.least = min(seen.least, st.Value.Available)
				seen.most = max(seen.most, st.Value.Placed)
				seen.coming = max(seen.coming, st.Value.Placed-st.Value.Available)
			}
			if r, err := e.store.RCs.Get(context.Background(), store.Consistent, id); err == nil &&
				r.Value.InPlace != nil {
				if n := r.Value.InPlace.Limit; len(seen.limits) == 0 || seen.limits[len(seen.limits)-1] != n {
					seen.limits = append(seen.limits, n)
				}
			}
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	do()
	e.within(limit, func() error {
		if n := len(e.placements(id)); n != pods {
			return fmt.Errorf("%s has %d pods, want %d", name, n, pods)
		}
		return e.availableAll(id, pods)
	})
	close(done)
	watching.Wait()
	return seen
}
