package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// grouped is a primary and readers, each role with its own environment. All readers prefer the same machine, but their
// spread keeps their numbers nearly equal.
func (e *env) grouped(read int, mode string) string {
	h := e.hello(0, map[string]string{"MODE": "none", "LOG": "info"})
	h.Port, h.NodeLoss = 0, "{after: 1s}"
	groups := fmt.Sprintf(
		"replica_groups:\n- {role: primary, count: 1, env: {MODE: %s}}\n- {role: read, count: %d, env: {MODE: read},\n"+
			"   spread: {label: rack, skew: 1, when: require}, affinity: [{selector: rack=a, weight: 10}]}\n", mode,
		read)
	return strings.Replace(cluster.HelloSpec(h), "replicas: 0\n", groups, 1)
}

func (e *env) mustBeEven(when string, machines int, table map[string]identity) {
	e.t.Helper()
	on := map[string]int{}
	for name, is := range table {
		if strings.HasPrefix(name, "read.") {
			on[is.node]++
		}
	}
	if many := slices.Sorted(maps.Values(on)); len(many) != machines || many[len(many)-1] > many[0]+1 {
		e.t.Errorf("%s, there are readers on %v", when, on)
	}
}

type identity struct {
	node, mode, log, replicas string
	pid                       int
}

func (e *env) identities(id string) map[string]identity {
	e.t.Helper()
	table := map[string]identity{}
	for key, pid := range e.processes() {
		name, at, _ := strings.Cut(strings.TrimPrefix(key, id+"/"), "@")
		vars := environOf(pid)
		if other, twice := table[name]; twice {
			e.t.Errorf("%s runs on %s and on %s", name, other.node, at)
		}
		table[name] = identity{node: at, mode: vars["MODE"], log: vars["LOG"], replicas: vars["POD_REPLICAS"], pid: pid}
	}
	return table
}

func (e *env) show(when string, table map[string]identity) {
	e.t.Helper()
	text := "identity    node  MODE      POD_REPLICAS  pid\n"
	for _, name := range slices.Sorted(maps.Keys(table)) {
		is := table[name]
		text += fmt.Sprintf("%-11s %-5s %-9s %-13s %d\n", name, is.node, is.mode, is.replicas, is.pid)
	}
	e.t.Logf("%s\n%s", when, text)
}

func (e *env) scaled(id string, read int) map[string]identity {
	e.t.Helper()
	e.rcctl("", "rc", "scale", "hello", "--role", "read", fmt.Sprint(read), "--wait", "--timeout", limit.String())
	e.within(limit, func() error {
		if table := e.identities(id); len(table) != read+1 {
			return fmt.Errorf("%d processes", len(table))
		}
		return nil
	})
	return e.identities(id)
}

func (e *env) mustKeep(when string, before, after map[string]identity) {
	e.t.Helper()
	for name, is := range after {
		if was, had := before[name]; had && was != is {
			e.t.Errorf("%s, %s is %+v and was %+v", when, name, is, was)
		}
	}
}

// roles: one primary and four readers on three machines, the readers spread over them. Each process has its role's
// environment, and keeps its identity. A change of the number of readers restarts no process. A change of one role's
// environment restarts only the processes of that role. If the primary's machine dies, the primary is primary.0 again
// elsewhere.
func roles(e *env) {
	e.startConsul("")
	agents, preparers := e.machines(3)
	e.farm("f1", "")
	e.gateOpen()
	e.rcctl(e.grouped(4, "primary"), "apply", "-f", "-", "--wait", "--timeout", limit.String())
	id := e.rcID("hello")
	first := e.identities(id)
	e.show("at first", first)
	for name, is := range first {
		role, _, _ := strings.Cut(name, ".")
		want := map[string]string{"primary": "1", "read": "4"}[role]
		if is.mode != role || is.log != "info" || is.replicas != want {
			e.t.Errorf("%s sees %+v", name, is)
		}
	}
	if names := slices.Sorted(maps.Keys(first)); !slices.Equal(names,
		[]string{"primary.0", "read.0", "read.1", "read.2", "read.3"}) {
		e.t.Fatalf("there are %v", names)
	}

	e.mustBeEven("at first", 3, first)
	six := e.scaled(id, 6)
	e.mustBeEven("with 6 readers", 3, six)
	e.mustKeep("with 6 readers", first, six)
	if six["read.5"].replicas != "6" || six["read.0"].replicas != "4" {
		e.t.Errorf("readers see %+v", six)
	}
	two := e.scaled(id, 2)
	e.mustKeep("with 2 readers", first, two)
	e.show("after 6 and 2 readers", two)

	e.rcctl(e.grouped(2, "leader"), "apply", "-f", "-", "--wait", "--timeout", limit.String())
	leader := e.identities(id)
	if leader["primary.0"].mode != "leader" || leader["primary.0"].pid == first["primary.0"].pid {
		e.t.Errorf("the primary is %+v", leader["primary.0"])
	}
	delete(two, "primary.0")
	e.mustKeep("with another primary", two, leader)

	var n int
	if _, err := fmt.Sscanf(leader["primary.0"].node, "n%d", &n); err != nil {
		e.t.Fatal(err)
	}
	e.powerOff(n, agents[n], preparers[n])
	e.within(limit+time.Minute, func() error {
		if now, is := e.identities(id)["primary.0"]; !is ||
			now.node == leader["primary.0"].node || now.mode != "leader" {
			return fmt.Errorf("primary.0 is %+v", now)
		}
		return nil
	})
	e.rcctl("", "rc", "status", "hello", "--watch", "--until", "Converged", "--timeout", (limit + time.Minute).String())
	last := e.identities(id)
	e.show(fmt.Sprintf("after n%d died", n), last)
	if names := slices.Sorted(maps.Keys(last)); !slices.Equal(names, []string{"primary.0", "read.0", "read.1"}) {
		e.t.Errorf("there are %v", names)
	}
	for name, is := range last {
		if was := leader[name]; was.node != fmt.Sprintf("n%d", n) && was.pid != is.pid {
			e.t.Errorf("%s was %+v and is %+v", name, was, is)
		}
	}
	e.oneCopyEach()
}
