package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// relabel: a pod is placed by the labels that nodes have at that moment. First the farm does not see that operators
// change labels, and that a preparer starts with other labels. Then labels change while the farm places pods. The
// controller is static, so its pods are not moved afterwards.
func relabel(e *env) {
	e.startConsul("")
	p := newProxy(e.t, e.consul.Addr)
	var preparers []*daemon
	for n := range 4 {
		preparers = append(preparers, e.preparer(n+1, "--label", "pool=a"))
	}
	e.farm("f1", p.addr)
	h := e.hello(3, nil)
	h.Selector, h.Port = "pool=a", 0
	e.applyText("strategy: static\n"+cluster.HelloSpec(h), "--wait", "--timeout", limit.String())
	id := e.rcID("hello")
	before := e.placements(id)

	letGo := p.delayNews("/nodeops/", "/nodes/")
	defer letGo()
	e.labels("n1 pool=b", "n2 pool=c", "n1 pool=d")
	e.restartWith(preparers[2], "pool=a", "pool=b")
	e.rcctl("", "rc", "scale", "hello", "12", "--wait", "--timeout", limit.String())
	for key, rec := range e.placements(id) {
		if _, was := before[key]; !was && rec.Value.Node != "n4" {
			e.t.Errorf("%s was placed on %s; only n4 matches", key, rec.Value.Node)
		}
	}
	e.placedWhereLabelsMatched(id)
	letGo()

	// A label of one pod belongs only to this pod.
	running := e.processes()
	e.rcctl("", "label", "pod", "hello-main-0", "debug=yes", "--wait", "--timeout", limit.String())
	e.rcctl("", "label", "rc", "hello", "team=a")
	if out := e.rcctl("", "pods", "-l", "debug=yes", "-o", "json"); strings.Count(out, `"pod_id"`) == 0 ||
		strings.Contains(out, `"hello-main-1"`) || !strings.Contains(out, `"hello-main-0"`) {
		e.t.Errorf("with the label debug there are %s", out)
	}
	if out := e.rcctl("", "label", "pod", "hello-main-0", "-o", "json"); !strings.Contains(out, `"debug": "yes"`) {
		e.t.Errorf("the labels of hello-main-0 are %s", out)
	}
	e.rcctl("", "label", "pod", "hello-main-0", "debug-", "--wait", "--timeout", limit.String())
	if out := e.rcctl("", "pods", "-l", "debug"); !strings.Contains(out, "no pods") {
		e.t.Errorf("the label stays: %s", out)
	}
	e.sameProcesses(running, "a pod was labelled")

	e.labels("n1 pool=a", "n2 pool=a")
	burst := make(chan error, 1)
	go func() {
		_, err := e.tryRcctl("", "rc", "scale", "hello", "24", "--wait", "--timeout", limit.String())
		burst <- err
	}()
	e.labels("n1 pool=b", "n2 pool=b")
	if err := <-burst; err != nil {
		e.t.Fatal(err)
	}
	on := e.nodesOf(id)
	slices.Sort(on)
	e.t.Logf("24 pods on %v", on)
	e.placedWhereLabelsMatched(id)
	e.oneCopyEach()
}

// labels labels several nodes at the same time.
func (e *env) labels(acts ...string) {
	e.t.Helper()
	byNode := map[string][]string{}
	for _, act := range acts {
		name, label, _ := strings.Cut(act, " ")
		byNode[name] = append(byNode[name], label)
	}
	var all sync.WaitGroup
	for name, labels := range byNode {
		all.Go(func() {
			for _, label := range labels {
				if _, err := e.tryRcctl("", "label", "node", name, label); err != nil {
					e.t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// restartWith restarts a preparer with one label replaced, and waits until it holds its node's lock.
func (e *env) restartWith(d *daemon, was, is string) {
	e.t.Helper()
	d.kill()
	at := slices.Index(d.args, was)
	d.args[at] = is
	d.startAgain()
	key, value, _ := strings.Cut(is, "=")
	e.within(limit, func() error {
		rec, err := e.store.Nodes.Get(e.t.Context(), store.Consistent, d.name)
		if err == nil && (rec.Session == "" || rec.Value.Labels[key] != value) {
			err = fmt.Errorf("%s does not say %s yet: %+v", d.name, is, rec.Value)
		}
		return err
	})
}

func (e *env) placedWhereLabelsMatched(id string) {
	e.t.Helper()
	judged := 0
	for key, rec := range e.placements(id) {
		name := rec.Value.Node
		record, err := e.store.Nodes.Get(e.t.Context(), store.Consistent, name)
		if err != nil {
			e.t.Fatal(err)
		}
		ops, err := e.store.NodeOps.Get(e.t.Context(), store.Consistent, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			e.t.Fatal(err)
		}
		if node.NewView(record.Value, ops.Value, true).AllLabels()["pool"] == "a" {
			continue
		}
		judged++
		ceased := ops.Index
		if ops.Value.Labels["pool"] == "" { // then the preparer's label counts, which does not match
			ceased = record.Index
		}
		placed, err := e.client.Get(e.t.Context(), e.store.Keys().Pods.Key(rec.Value.Identity.String()),
			consul.Consistent)
		if err != nil {
			e.t.Fatal(err)
		}
		if placed.CreateIndex > ceased {
			e.t.Errorf("%s was placed on %s at index %d, after that ceased to match at %d",
				key, name, placed.CreateIndex, ceased)
		}
	}
	e.t.Logf("%d pods are on nodes that match no more", judged)
}
