package e2e

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// badMachine: on one machine a program ends at once. After a deployment or a scaling, no replica of the program is left
// on this machine, and no deployment fails because of the machine. The machine is empty, so it would be the first
// choice for each further replica. While other nodes work, it is the last choice. A version that works on no node is
// tried on a second node, and then its deployment fails.
func badMachine(e *env) {
	e.site(3, 1)
	w := web{replicas: 3, version: "1", update: "step: 1, stage_timeout: 1h"}
	e.deployed(w)
	w.env = map[string]string{"HELLO_FAIL": "n1"}
	for _, version := range []string{"2", "3"} {
		w.version = version
		e.deployed(w)
		e.leavesOut("n1", 3)
	}
	tried := e.triedElsewhere()
	w.replicas = 5
	e.rcctl("", "scale", "web", "5", "--yes")
	e.runs(map[string]int{"3": 5})
	e.leavesOut("n1", 5)
	if now := e.triedElsewhere(); now != tried {
		e.t.Errorf("%d pods began on n1 that came later", now-tried)
	}
	e.mustSay([]string{
		"it never became available there, and is tried on another node",
		"it never became available on n1",
	}, "audit", "--node", "n1")

	w.version, w.env = "4", map[string]string{"HELLO_FAIL": "1"}
	e.fails(w, "again and again")
	e.leavesOut("n1", 5)

	h := e.hello(3, map[string]string{"HELLO_FAIL": "n1"})
	h.Name, h.Port = "plain", 0
	e.applied(h)
	id := e.rcID("plain")
	if nodes := e.nodesOf(id); slices.Contains(nodes, "n1") {
		e.t.Errorf("pods of plain are on %v", nodes)
	}
	e.oneCopyEach()
}

func (e *env) triedElsewhere() (n int) {
	for _, p := range e.placements(e.newest()) {
		if p.Value.Tried() != nil {
			n++
		}
	}
	return n
}

func (e *env) newest() (id string) {
	recs, corrupt, err := e.store.RCs.List(e.t.Context(), store.Consistent, "")
	if err != nil || len(corrupt) > 0 {
		e.t.Fatal(err, corrupt)
	}
	newest := int64(0)
	for _, r := range recs {
		if s := r.Value.Service; s != nil && r.Value.Desired() > 0 && s.Revision > newest {
			newest, id = s.Revision, rc.RevisionID(rc.UnitOf(r.Value.ID), s.Revision)
		}
	}
	return id
}

func (e *env) leavesOut(nodeName string, pods int) {
	e.t.Helper()
	e.within(limit, func() error {
		id := e.newest()
		if err := e.converged(id, pods); err != nil {
			return err
		}
		var on []string
		for _, p := range e.placements(id) {
			on = append(on, p.Value.Node)
		}
		if slices.Contains(on, nodeName) {
			return fmt.Errorf("pods are on %s", strings.Join(on, ", "))
		}
		return nil
	})
}
