package scheduler_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/placement"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(prefix, i)
	}
	return out
}

func has(p *scheduler.Preference, name string) bool {
	return slices.Contains(slices.Collect(p.All()), name)
}

func listed(names []string) scheduler.Preference {
	return scheduler.Preference{Order: placement.InOrder(names)}
}

// A pool is empty if both parts have no node left.
func TestEmptyPool(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		preferred, rest, taken int
		empty                  bool
	}{
		"nothing":         {0, 0, 0, true},
		"preferred":       {2, 0, 1, false},
		"rest":            {0, 2, 1, false},
		"as many of both": {2, 2, 1, false},
		"all were taken":  {2, 2, 2, true},
	} {
		pool := scheduler.Pool{Preferred: listed(names("own", tt.preferred)), Rest: listed(names("rest", tt.rest))}
		pool.Preferred.Take(names("own", min(tt.taken, tt.preferred)))
		pool.Rest.Take(names("rest", min(tt.taken, tt.rest)))
		if got := pool.Empty(); got != tt.empty {
			t.Errorf("%s: empty: %t", name, got)
		}
	}
}

// Different passes get different nodes, and take only few nodes that other farms prefer.
func TestLedgerKeepsPassesApart(t *testing.T) {
	t.Parallel()
	var l scheduler.Ledger
	taken := map[string]bool{}
	for range 6 {
		from := &scheduler.Pool{Preferred: listed(names("own", 40)), Rest: listed(names("rest", 40))}
		some, fallback := l.Take(t.Context(), from, 3, true)
		for _, name := range some {
			if taken[name] {
				t.Errorf("%s was given to two passes", name)
			}
			taken[name] = true
		}
		if len(fallback) > 2 || len(some)-len(fallback) < 3 {
			t.Errorf("took %v, of others %v", some, fallback)
		}
		if from.Preferred.Left()+from.Rest.Left()+len(some) != 80 ||
			slices.ContainsFunc(some, func(name string) bool { return has(&from.Preferred, name) }) {
			t.Errorf("took %v and left %v and %v", some,
				slices.Collect(from.Preferred.All()), slices.Collect(from.Rest.All()))
		}
	}
}

// If no preferred node is left, a pass takes nodes of the rest. A pass that must not wait takes as many nodes as it
// needs, even if other passes have them.
func TestLedgerTakesWhatThereIs(t *testing.T) {
	t.Parallel()
	var l scheduler.Ledger
	from := &scheduler.Pool{Rest: listed(names("rest", 20))}
	if some, fallback := l.Take(t.Context(), from, 3, true); len(some) != 12 ||
		len(fallback) != 12 || from.Rest.Left() != 8 {
		t.Errorf("took %v, of others %v", some, fallback)
	}
	large := &scheduler.Pool{Preferred: listed(names("own", 40)), Rest: listed(names("rest", 40))}
	if some, fallback := l.Take(t.Context(), large, 30, true); len(some) != 55 || len(fallback) != 15 {
		t.Errorf("took %d nodes for 30 pods, %d of others; want all of the own share, and some of others", len(some),
			len(fallback))
	}
	l = scheduler.Ledger{}
	small := names("own", 2)
	for range 2 {
		if some, _ := l.Take(t.Context(), &scheduler.Pool{Preferred: listed(small)}, 3,
			false); !slices.Equal(slices.Sorted(slices.Values(some)), small) {
			t.Errorf("took %v", some)
		}
	}
	some, fallback := l.Take(t.Context(), &scheduler.Pool{Preferred: listed(small), Rest: listed(names("rest", 12))}, 4,
		false)
	if len(some) != 4 || len(fallback) != 2 {
		t.Errorf("took %v, of others %v; all are busy", some, fallback)
	}
}

// If other passes have the nodes, a pass waits until they give some back, but at most for nodesWait.
func TestLedgerWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l scheduler.Ledger
		own := names("own", 4)
		first, _ := l.Take(t.Context(), &scheduler.Pool{Preferred: listed(own)}, 3, true)
		l.GiveBack(first[3:])
		if len(first) < 3 {
			t.Fatalf("took %v", first)
		}
		const write = 100 * time.Millisecond // how long the writes of another pass can take
		started := time.Now()
		time.AfterFunc(write, func() { l.GiveBack(first[:3]) })
		second, _ := l.Take(t.Context(), &scheduler.Pool{Preferred: listed(own)}, 3, true)
		if waited := time.Since(started); waited != write || len(second) < 3 {
			t.Errorf("took %v after %s", second, waited)
		}
		started = time.Now()
		third, _ := l.Take(t.Context(), &scheduler.Pool{Preferred: listed(own)}, 3, true)
		if waited := time.Since(started); waited != scheduler.NodesWait || len(third) != 3 {
			t.Errorf("took %v after %s", third, waited)
		}
	})
}

// racked returns a preference for nodes in racks, for pods that are spread over the racks.
func racked(racks map[string][]string, pods map[string]int) scheduler.Preference {
	var groups []scheduler.Group
	for rack, nodes := range racks {
		groups = append(groups, scheduler.Group{Value: rack, First: nodes})
	}
	return scheduler.Preference{Turns: placement.NewSpread(groups, pods, nil, 7)}
}

// If pods are spread and other passes have nodes of a rack, a pass takes other nodes of this rack. If the rack has no
// other nodes, the pass waits, but at most for nodesWait. It does not wait if other racks have fewer pods.
func TestLedgerSpreads(t *testing.T) {
	t.Parallel()
	racks := map[string][]string{"a": {"a0"}, "b": names("b", 20), "c": names("c", 20)}
	for name, tt := range map[string]struct {
		busy   []string
		pods   map[string]int
		needs  []string // nodes
		waited time.Duration
	}{
		"free":                    {nil, nil, []string{"a0"}, 0},
		"others of the rack":      {names("b", 19), nil, []string{"a0", "b19"}, 0},
		"none other":              {[]string{"a0"}, nil, []string{"a0"}, scheduler.NodesWait},
		"none of the rack":        {names("b", 20), nil, []string{"a0"}, scheduler.NodesWait},
		"of a rack that has more": {[]string{"a0"}, map[string]int{"a": 2}, nil, 0},
		"of the emptiest": {
			[]string{"a0"},
			map[string]int{"b": 3, "c": 3},
			[]string{"a0"},
			scheduler.NodesWait,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var l scheduler.Ledger
				l.Reserve(tt.busy)
				started := time.Now()
				from := &scheduler.Pool{Preferred: racked(racks, tt.pods)}
				some, fallback := l.Take(t.Context(), from, 3, true)
				if waited := time.Since(started); waited != tt.waited || len(fallback) > 0 {
					t.Errorf("took %v after %s, want that after %s", some, waited, tt.waited)
				}
				perRack, seen := map[string]int{}, map[string]bool{}
				for _, name := range some {
					if seen[name] || has(&from.Preferred, name) {
						t.Errorf("took %v with %s twice, or left it", some, name)
					}
					seen[name] = true
					perRack[name[:1]]++
				}
				for _, name := range tt.needs {
					if !seen[name] {
						t.Errorf("took %v without %s", some, name)
					}
				}
				if perRack["b"] == 0 || perRack["c"] == 0 || from.Preferred.Left() != 41-len(some) {
					t.Errorf("took %v and left %d", some, from.Preferred.Left())
				}
			})
		})
	}
}

// The test checks how many nodes a pass takes, and whether it waits, just below and above the limits.
func TestLedgerTakesItsPart(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		nodes        int
		busy, former []string // busy: nodes that passes have; former: nodes that a pass gave back
		full         []string // nodes that are not tried
		pods         int
		want         int
		waited       time.Duration
	}{
		"all of as many as are looked at":  {nodes: 12, pods: 3, want: 12},
		"a quarter of one more":            {nodes: 13, pods: 3, want: 3},
		"a quarter of those that are free": {nodes: 60, busy: names("own", 20), pods: 3, want: 10},
		"what was given back is free":      {nodes: 40, former: names("own", 20), pods: 3, want: 10},
		"three for each pod":               {nodes: 200, pods: 5, want: 15},
		"as many as there are pods":        {nodes: 24, pods: 7, want: 7},
		"an eighth will do for many pods":  {nodes: 160, busy: names("own", 140), pods: 100, want: 20},
		"less than an eighth will not": {
			nodes: 160, busy: names("own", 141), pods: 100,
			want: 20, waited: scheduler.NodesWait,
		},
		"just enough is free": {nodes: 20, busy: names("own", 17), pods: 3, want: 3},
		"one too few is free": {
			nodes: 20, busy: names("own", 18), pods: 3,
			want: 3, waited: scheduler.NodesWait,
		},
		"all are free, and still not enough": {nodes: 2, pods: 3, want: 2},
		"nobody waits for full nodes": {
			nodes: 20, busy: names("own", 3),
			full: names("own", 18), pods: 3, want: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var l scheduler.Ledger
				l.Reserve(tt.busy)
				l.Reserve(tt.former)
				l.GiveBack(tt.former)
				started := time.Now()
				from := &scheduler.Pool{Preferred: listed(names("own", tt.nodes))}
				from.Preferred.Skip = func(name string) bool { return slices.Contains(tt.full, name) }
				some, _ := l.Take(t.Context(), from, tt.pods, true)
				if waited := time.Since(started); len(some) != tt.want || waited != tt.waited {
					t.Errorf("took %d after %s, want %d after %s", len(some), waited, tt.want, tt.waited)
				}
			})
		})
	}
}
