package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// eachNode: a service has a pod on every node that matches: on the first nodes, on a node that joins, and on a node
// that is relabelled. It has no pod on a drained node. A node that was killed and has returned gets a pod again. An
// upgrade leaves each pod on its node.
func eachNode(e *env) {
	e.startConsul("")
	preparers := map[string]*daemon{}
	start := func(n int, disk string) {
		preparers[fmt.Sprintf("n%d", n)] = e.preparer(n, "--label", "disk="+disk)
	}
	start(1, "ssd")
	start(2, "ssd")
	start(3, "hdd")
	e.farm("f1", "")
	e.gateOpen()
	deploy := func(version string) {
		w := web{version: version, update: "step: 1"}
		text := strings.NewReplacer("replicas: 0\n", "mode: each-node\n", `node_selector: ""`,
			`node_selector: "disk=ssd"`).Replace(e.document(w))
		e.rcctl(text, "deploy", "-f", "-", "--yes")
	}
	deploy("1")
	e.onEach("1", "n1", "n2")
	start(4, "ssd")
	e.onEach("1", "n1", "n2", "n4")
	e.rcctl("", "label", "node", "n3", "disk=ssd")
	e.onEach("1", "n1", "n2", "n3", "n4")
	e.rcctl("", "label", "node", "n1", "disk=hdd")
	before := e.onEach("1", "n2", "n3", "n4")
	e.mustSay([]string{"3/3"}, "rc", "list")

	e.powerOff(2, preparers["n2"])
	id := e.rcID("web-r1")
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Consistent, id)
		if err == nil && (st.Value.Lost+st.Value.Unmanaged != 1 || st.Value.Desired != 3 || st.Value.Placed != 3) {
			err = fmt.Errorf("%+v", st.Value)
		}
		return err
	})
	preparers["n2"].startAgain()
	if after := e.onEach("1", "n2", "n3", "n4"); !maps.Equal(after, before) {
		e.t.Errorf("pods by node: %v; before n2 was killed %v", after, before)
	}

	e.rcctl("", "node", "drain", "n4", "--wait", "--timeout", limit.String())
	e.onEach("1", "n2", "n3")
	e.rcctl("", "node", "undrain", "n4")
	before = e.onEach("1", "n2", "n3", "n4")
	deploy("2")
	if after := e.onEach("2", "n2", "n3", "n4"); !maps.Equal(after, before) {
		e.t.Errorf("pods by node: %v; before the upgrade %v", after, before)
	}
}

func (e *env) onEach(version string, nodes ...string) map[string]string {
	e.t.Helper()
	on := map[string]string{}
	e.within(limit, func() error {
		clear(on)
		for key := range e.processes() {
			name, at, _ := strings.Cut(key, "@")
			if on[at] != "" {
				return fmt.Errorf("%s and %s are both on %s", on[at], name, at)
			}
			on[at] = name
		}
		if got := slices.Sorted(maps.Keys(on)); !slices.Equal(got, nodes) {
			return fmt.Errorf("pods run on %v, want %v", got, nodes)
		}
		if got := e.versions(); got[version] != len(nodes) {
			return fmt.Errorf("processes of versions %v, want %d of %s", got, len(nodes), version)
		}
		st, err := e.store.Statuses.Get(e.t.Context(), store.Consistent, e.rcID("web-r1"))
		if err == nil && (!st.Value.Is(rc.Converged) || st.Value.Desired != len(nodes)) {
			err = errors.New(st.Value.Conditions[0].Reason)
		}
		return err
	})
	return on
}
