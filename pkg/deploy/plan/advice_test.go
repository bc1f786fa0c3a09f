package plan_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

const (
	httpPort = `pod.ports=[{"name": "http", "port": 8080}]`
	other    = "other-1" // a controller of another service
)

// full is a state with nodes of one slot each. The pods of the service are on them, one after the other.
func (c *cluster) full(nodeCount, pods int) *plan.State {
	state := nodes(slices.Repeat([]int{1}, nodeCount)...)
	state.Names = map[string]string{other: "other-r1"}
	for i := range pods {
		c.has(state, i, i%nodeCount, 0)
	}
	return state
}

// has gives a node a pod of the revision in effect.
func (c *cluster) has(state *plan.State, index, at int, claim int64, ports ...int) {
	id := pod.Identity{RCID: c.svc.Deployed.RC, Role: rc.DefaultRole, Index: index}
	state.Taken[fmt.Sprint("n", at)].Claims[id.String()] = node.Claim{Pod: id, CPU: claim, Ports: ports}
}

// held makes another service hold a port on nodes. These nodes get one more slot.
func held(state *plan.State, port int, at ...int) {
	for _, i := range at {
		name := fmt.Sprint("n", i)
		id := pod.Identity{RCID: other, Role: rc.DefaultRole, Index: i}
		state.Taken[name].Claims[id.String()] = node.Claim{Pod: id, Ports: []int{port}}
		state.Nodes[name].Capacity.Slots++
	}
}

// A refusal names the strategies for which the planner has found capacity. If there are none, the refusal names the
// obstacle and a remedy.
func TestRefusalsNameWhatHelps(t *testing.T) {
	const selector = `node_selector="zone=x"`
	for _, tt := range []struct {
		name  string
		state func(*cluster) *plan.State
		spec  []string
		want  string // empty: planned
	}{
		{
			"the port is another service's", func(c *cluster) *plan.State {
				s := c.full(3, 3)
				held(s, 8080, 0, 1, 2)
				return s
			},
			[]string{httpPort},
			"service web: no-room: no node takes a pod of the new revision, not even without those that it has now " +
				"(nodes that take no more: ports: 3; " +
				"port 8080 is held by other-r1 on n0, n1, n2); no strategy helps: free the port, or use another one",
		},
		{"of a controller without a name", func(c *cluster) *plan.State {
			s := c.full(1, 3)
			held(s, 8080, 0)
			s.Names = nil
			return s
		}, []string{httpPort}, "port 8080 is held by other-1 on n0"},
		{
			"the machine has it", func(c *cluster) *plan.State {
				s := c.full(1, 3)
				s.Nodes["n0"].PortsInUse = []int{8080}
				return s
			},
			[]string{httpPort},
			"port 8080 is held by something else on the machine on n0); no strategy helps: free the port",
		},
		{"stop first", func(c *cluster) *plan.State {
			s := c.full(1, 3)
			held(s, 8080, 0)
			return s
		}, []string{httpPort, `update.order="stop-first"`}, "port 8080 is held by other-r1"},
		{
			"in place", func(c *cluster) *plan.State {
				s := c.full(1, 1)
				held(s, 8080, 0)
				return s
			},
			[]string{httpPort, `update.strategy="in-place"`},
			"port 8080 is held by other-r1 on n0); no strategy helps: free the port",
		},
		{
			"no node matches", func(c *cluster) *plan.State { return c.full(3, 3) },
			[]string{selector},
			`service web: no-room: the node_selector "zone=x" matches none of 3 nodes; no strategy helps: ` +
				`change it, or label nodes: rcctl label node NODE KEY=VALUE`,
		},
		{
			"no node matches, stop first", func(c *cluster) *plan.State { return c.full(3, 3) },
			[]string{selector, `update.order="stop-first"`},
			"matches none of 3 nodes; no strategy",
		},
		{
			"no node matches, in place", func(c *cluster) *plan.State { return c.full(3, 3) },
			[]string{selector, `update.strategy="in-place"`},
			"matches none of 3 nodes; no strategy",
		},
		{
			"all nodes are full of others", func(*cluster) *plan.State { return nodes(0, 0) },
			[]string{newManifest},
			"(nodes that take no more: resources: 2); no strategy helps: add nodes, or free some of what is taken: " +
				"rcctl place --explain -f FILE shows it",
		},
		{
			"the pods' own room", func(c *cluster) *plan.State { return c.full(3, 3) },
			[]string{newManifest},
			"and the nodes have room for 0 (nodes that take no more: resources: 3); use --strategy resourceutil (old " +
				"pods stop first) or --strategy in-place (pods stay on their nodes)",
		},
		{"elsewhere only", func(c *cluster) *plan.State {
			s := c.full(3, 3)
			held(s, 8080, 0, 1, 2)
			for i := 3; i < 6; i++ {
				more := nodes(slices.Repeat([]int{1}, 6)...)
				s.Nodes[fmt.Sprint("n", i)], s.Taken[fmt.Sprint("n", i)] = more.Nodes[fmt.Sprint("n", i)],
					more.Taken[fmt.Sprint("n", i)]
			}
			return s
		}, []string{httpPort, `update.strategy="in-place"`}, "use --strategy availability"},
		{
			"the pods are in place already", func(c *cluster) *plan.State {
				s := c.full(3, 3)
				for _, name := range []string{"n0", "n1", "n2"} {
					s.Nodes[name].Ops.Unschedulable = true
				}
				return s
			},
			[]string{newManifest},
			"(nodes that take no more: drained: 3); use --strategy in-place (pods stay on their nodes)",
		},
		{
			"a share of the surge is a pod at least", func(c *cluster) *plan.State { return c.full(3, 3) },
			[]string{newManifest, `update.max_surge="10%"`},
			"starts 1 pod before it stops others, and the nodes have room for 0",
		},
		{
			"room for no surge", func(c *cluster) *plan.State { return c.full(3, 3) },
			[]string{newManifest, `update.max_unavailable=1`},
			"starts 1 pod before it stops others, and the nodes have room for 0 (nodes that take no more: resources: 3); " +
				"use --strategy resourceutil (old pods stop first) or --strategy in-place",
		},
		{
			"a smaller surge", func(c *cluster) *plan.State {
				s := c.full(3, 3)
				s.Nodes["n0"].Capacity.Slots++
				return s
			},
			[]string{newManifest, `update.step=2`},
			"use update.max_surge: 1, --strategy resourceutil (old pods stop first) or --strategy in-place",
		},
		// n1 has capacity for a large pod only when both pods there have stopped
		{"a stage frees too little", func(c *cluster) *plan.State {
			s := nodes(2, 2)
			s.Nodes["n0"].Capacity.CPU, s.Nodes["n1"].Capacity.CPU = 4000, 4000
			for i := range 3 {
				c.has(s, i, i%2, 2000)
			}
			held(s, 99, 1)
			s.Taken["n1"].Claims["x"] = node.Claim{Pod: pod.Identity{RCID: "x"}, CPU: 1000}
			s.Nodes["n1"].Capacity.Slots++
			return s
		}, []string{`pod.launchables=` + launchableWith(`{"cpu": 4000}`)}, "no strategy helps"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			c.deployed(t, sample(t))
			state := tt.state(c)
			p, err := c.planOf(t, sample(t, tt.spec...), func(r *plan.ServicePlanner) { r.State = state })
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v, warnings %v\nwant %s", err, p.Warnings, tt.want)
			}
		})
	}
}

func launchableWith(resources string) string {
	return `[{"name": "server", "artifact": {"kind": "tar", "url": "https://files.example/web-1.2.tar.gz",
		"sha256": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, "resources": ` + resources + `}]`
}

// A refusal recommends in-place for pods that must stay on their nodes only if a plan with it works.
func TestInPlaceIsTriedBeforeItIsNamed(t *testing.T) {
	const volume = `pod.volumes=[{"name": "data"}]`
	for _, tt := range []struct {
		name string
		spec []string
		held bool
		want string
	}{
		{
			"it works",
			[]string{newManifest},
			false,
			"they stay with their data, so no pod of a new revision could take its place; use update.strategy: " +
				"in-place",
		},
		{
			"the port is taken",
			[]string{httpPort},
			true,
			"so no pod of a new revision could take its place; all that could help is refused, too (use " +
				"update.strategy: in-place): no-room: no pod can be upgraded where it is",
		},
		{
			"a stage is too short",
			[]string{newManifest, `update.stage_timeout="15s"`, `pod.service={"drain": "10s"}`},
			false,
			"refused, too (use update.strategy: in-place): update.stage_timeout is 15s, within which no pod of the " +
				"revision in effect " +
				"could be replaced; set update.stage_timeout to more than 20s",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			c.deployed(t, sample(t, volume, `pod.service={"drain": "10s"}`))
			state := c.full(3, 3)
			if tt.held {
				held(state, 8080, 0, 1, 2)
			}
			_, err := c.planOf(t, sample(t, append(tt.spec, elsewhere)...), func(r *plan.ServicePlanner) {
				r.State = state
			})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// The flag --strategy decides what a change needs. The strategy in the document is then ignored.
func TestTheGivenStrategyDecidesWhatAChangeTakes(t *testing.T) {
	const inPlace, start = `update.strategy="in-place"`, "start rollout "
	for _, tt := range []struct{ document, given, change, want string }{
		{`update.strategy="availability"`, rollout.InPlaceStrategy, newManifest, start + "in-place"},
		{inPlace, rollout.AvailabilityStrategy, newManifest, start + "availability"},
		{inPlace, rollout.ResourceUtilStrategy, `node_selector="a!=b"`, start + "resourceutil"},
		{inPlace, rollout.InPlaceStrategy, newManifest, start + "in-place"},
	} {
		c := &cluster{}
		c.deployed(t, sample(t))
		p, err := c.planOf(t, sample(t, tt.document, tt.change), func(r *plan.ServicePlanner) {
			r.Override = tt.given
		})
		if text := strings.Join(linesOf(p), "\n"); err != nil || !strings.Contains(text, tt.want) {
			t.Errorf("%s, given %s: %v\n%s", tt.document, tt.given, err, text)
		}
	}
}

// With any strategy, an update has the same warnings as a new service.
func TestUpdatesWarnAsNewServicesDo(t *testing.T) {
	for _, tt := range []struct {
		name  string
		state func(*cluster) *plan.State
		spec  []string
		want  []string
	}{
		{
			"more pods than nodes take", func(c *cluster) *plan.State { return c.full(4, 3) },
			[]string{`replicas=9`},
			[]string{"there is room for 4 of 9 pods (nodes that take no more: resources: 4)"},
		},
		{"they have room", func(c *cluster) *plan.State { return c.full(9, 3) }, []string{`replicas=9`}, nil},
		{"those that run are no lack of room", func(c *cluster) *plan.State {
			s := c.full(4, 3)
			s.Nodes["n0"].Ops.Unschedulable, s.Nodes["n1"].Alive = true, false
			return s
		}, []string{`replicas=4`}, nil},
		{
			"one of them must leave", func(c *cluster) *plan.State {
				s := c.full(3, 3)
				s.Nodes["n0"].Ops.Drain = &node.Drain{}
				return s
			},
			[]string{`labels={"a": "b"}`},
			[]string{"there is room for 2 of 3 pods (nodes that take no more: drained: 1, resources: 2)"},
		},
		{"fewer", func(c *cluster) *plan.State { return c.full(3, 3) }, []string{`replicas=1`}, nil},
		{
			"max_per_node counts what is there", func(c *cluster) *plan.State {
				s := c.full(3, 3)
				s.Nodes["n0"].Capacity.Slots = 9
				return s
			},
			[]string{`replicas=5`, `max_per_node=1`, `update.strategy="in-place"`},
			[]string{"there is room for 3 of 5 pods (nodes that take no more: max_per_node: 3)"},
		},
		{
			"a new revision", func(c *cluster) *plan.State {
				s := c.full(4, 3)
				held(s, 8080, 1, 2)
				return s
			},
			[]string{httpPort},
			[]string{"there is room for 2 of 3 pods (nodes that take no more: ports: 4; port 8080 is held by " +
				"other-r1 on n1, n2)"},
		},
		{
			"stop first", func(c *cluster) *plan.State {
				s := c.full(3, 3)
				held(s, 8080, 0)
				return s
			},
			[]string{httpPort, `update.order="stop-first"`},
			[]string{"there is room for 2 of 3 pods (nodes that take no more: ports: 3; " +
				"port 8080 is held by other-r1 on n0)"},
		},
		{
			"in place", func(c *cluster) *plan.State {
				s := c.full(3, 3)
				held(s, 8080, 1)
				return s
			},
			[]string{httpPort, `update.strategy="in-place"`},
			[]string{"there is room for 2 of 3 pods (nodes that take no more: ports: 1; " +
				"port 8080 is held by other-r1 on n1)"},
		},
		{
			"in place, all have room", func(c *cluster) *plan.State { return c.full(3, 3) },
			[]string{httpPort, `update.strategy="in-place"`},
			nil,
		},
		{
			"a smaller revision", func(c *cluster) *plan.State { return c.full(3, 3) },
			[]string{newManifest, `replicas=2`, `update.order="stop-first"`},
			nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{}
			c.deployed(t, sample(t))
			state := tt.state(c)
			p, err := c.planOf(t, sample(t, tt.spec...), func(r *plan.ServicePlanner) { r.State = state })
			if diff := cmp.Diff(tt.want, p.Warnings); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

// For combinations of ports, selectors and CPU, the test plans each way that a refusal names, from the same records. No
// such plan is refused or ends with fewer pods than now. A refusal names no way if no node could take a pod.
func TestEachRecommendationWorks(t *testing.T) {
	const count = 3
	refused, named := 0, 0
	for _, port := range []string{"dynamic", "own", "free", "held", "held on one", "held on two"} {
		for _, selector := range []string{"", "zone=one", "zone=none"} {
			for _, spare := range []int{0, 1, count} {
				for _, update := range []string{
					`update.strategy="availability"`, `update.order="start-first"`, `update.strategy="resourceutil"`,
					`update.strategy="in-place"`,
					`update.strategy="blue-green"`, `update.strategy="canary"`,
					`update={"step": 2, "strategy": "availability"}`, `update={"max_surge": 0, "max_unavailable": 2}`,
				} {
					c := &cluster{}
					before := []string{}
					if port == "own" {
						before = append(before, httpPort)
					}
					c.deployed(t, sample(t, append(before, `pod.launchables=`+launchableWith(`{"cpu": 1000}`))...))
					spec := []string{
						newManifest, update, `pod.launchables=` + launchableWith(`{"cpu": 1000}`),
						fmt.Sprintf("node_selector=%q", selector),
					}
					if port != "dynamic" {
						spec = append(spec, httpPort)
					}
					state, takes := smallWorld(c, count, port, selector, spare)
					name := fmt.Sprintf("port %s, selector %q, CPU for %d more, %s", port, selector, spare, update)
					_, err := c.planOf(t, sample(t, spec...), func(r *plan.ServicePlanner) { r.State = state })
					var why *plan.RefusedError
					if !errors.As(err, &why) {
						if err != nil || !takes {
							t.Errorf("%s: planned though no node takes a pod, or %v", name, err)
						}
						continue
					}
					refused++
					ways := waysIn(err.Error())
					named += len(ways)
					if len(ways) > 0 && !takes {
						t.Errorf("%s: no node takes a pod, and it says %v", name, err)
					}
					for _, w := range ways {
						p, err := c.planOf(t, sample(t, append(spec, w.spec...)...), func(r *plan.ServicePlanner) {
							r.State, r.Override = state, w.strategy
						})
						if text := fmt.Sprint(p.Warnings); err != nil || strings.Contains(text, "there is room") {
							t.Errorf("%s: it recommends %+v, which has the warnings %s, or is refused: %v",
								name, w, text, err)
						}
					}
				}
			}
		}
	}
	if refused < 50 || named < 50 {
		t.Errorf("%d plans were refused, with %d ways in all", refused, named)
	}
}

// smallWorld has a pod of the service on each node. takes reports whether a node could take a pod of the new revision.
func smallWorld(c *cluster, count int, port, selector string, spare int) (state *plan.State, takes bool) {
	state = nodes(slices.Repeat([]int{9}, count)...)
	state.Names = map[string]string{other: "other-r1"}
	for i := range count {
		v := state.Nodes[fmt.Sprint("n", i)]
		v.Capacity.CPU, v.Labels = 1000, map[string]string{"zone": "all"}
		if i < spare {
			v.Capacity.CPU = 2000
		}
		if selector == "zone=one" && i == 0 {
			v.Labels["zone"] = "one"
		}
		state.Taken[v.Name] = node.Reservation{
			Labels: node.NewView(v.Node, v.Ops, true).LabelVersions, Claims: map[string]node.Claim{},
		}
		v.LabelVersions = state.Taken[v.Name].Labels
		if port == "own" {
			c.has(state, i, i, 1000, 8080)
		} else {
			c.has(state, i, i, 1000)
		}
		holds := port == "held" || port == "held on one" && i == 0 || port == "held on two" && i < 2
		if holds {
			held(state, 8080, i)
		}
		matches := selector == "" || selector == "zone="+v.Labels["zone"]
		takes = takes || matches && !holds
	}
	return state, takes
}

type wayOut struct {
	strategy string
	spec     []string
}

// waysIn reads from the text of a refusal the ways that it names.
func waysIn(text string) (ways []wayOut) {
	_, advice, _ := strings.Cut(text, "; ")
	for _, part := range regexp.MustCompile(`, | or `).Split(advice, -1) {
		var w wayOut
		for _, kind := range rollout.StrategyNames() {
			if strings.Contains(part, kind) {
				w.strategy = kind
			}
		}
		if m := regexp.MustCompile(`max_surge: ([0-9]+)`).FindStringSubmatch(part); m != nil {
			n, _ := strconv.Atoi(m[1])
			w.spec = []string{fmt.Sprintf("update.max_surge=%d", n)}
		}
		if w.strategy != "" || w.spec != nil {
			ways = append(ways, w)
		}
	}
	return ways
}
