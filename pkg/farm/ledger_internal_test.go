package farm

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/placement"
)

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(prefix, i)
	}
	return out
}

func (p *preference) has(name string) bool {
	return slices.Contains(slices.Collect(p.all()), name)
}

func listed(names []string) preference { return preference{order: placement.InOrder(names)} }

// Passes keep off each other's nodes, and off those of other farms as far as they can.
func TestLedgerKeepsPassesApart(t *testing.T) {
	t.Parallel()
	var l ledger
	taken := map[string]bool{}
	for range 6 {
		from := &pool{share: listed(names("own", 40)), rest: listed(names("rest", 40))}
		some, foreign := l.take(t.Context(), from, 3, true)
		for _, name := range some {
			if taken[name] {
				t.Errorf("%s was given to two passes", name)
			}
			taken[name] = true
		}
		if len(foreign) > 2 || len(some)-len(foreign) < 3 {
			t.Errorf("took %v, of others %v", some, foreign)
		}
		if from.share.left()+from.rest.left()+len(some) != 80 || slices.ContainsFunc(some, from.share.has) {
			t.Errorf("took %v and left %v and %v", some, slices.Collect(from.share.all()), slices.Collect(from.rest.all()))
		}
	}
}

// Without own nodes the rest is used; and what is needed is taken, whoever has it, by a pass that must not wait.
func TestLedgerTakesWhatThereIs(t *testing.T) {
	t.Parallel()
	var l ledger
	from := &pool{rest: listed(names("rest", 20))}
	if some, foreign := l.take(t.Context(), from, 3, true); len(some) != 12 || len(foreign) != 12 || from.rest.left() != 8 {
		t.Errorf("took %v, of others %v", some, foreign)
	}
	large := &pool{share: listed(names("own", 40)), rest: listed(names("rest", 40))}
	if some, foreign := l.take(t.Context(), large, 30, true); len(some) != 55 || len(foreign) != 15 {
		t.Errorf("took %d nodes for 30 pods, %d of others; want all of the own share, and some of others", len(some), len(foreign))
	}
	l = ledger{}
	small := names("own", 2)
	for range 2 {
		if some, _ := l.take(t.Context(), &pool{share: listed(small)}, 3, false); !slices.Equal(slices.Sorted(slices.Values(some)), small) {
			t.Errorf("took %v", some)
		}
	}
	some, foreign := l.take(t.Context(), &pool{share: listed(small), rest: listed(names("rest", 12))}, 4, false)
	if len(some) != 4 || len(foreign) != 2 {
		t.Errorf("took %v, of others %v; all are busy", some, foreign)
	}
}

// A pass that has nothing yet waits for nodes, but not for ever.
func TestLedgerWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		own := names("own", 4)
		first, _ := l.take(t.Context(), &pool{share: listed(own)}, 3, true)
		l.giveBack(first[3:])
		if len(first) < 3 {
			t.Fatalf("took %v", first)
		}
		started := time.Now()
		time.AfterFunc(nodesWait/2, func() { l.giveBack(first[:3]) })
		second, _ := l.take(t.Context(), &pool{share: listed(own)}, 3, true)
		if waited := time.Since(started); waited != nodesWait/2 || len(second) < 3 {
			t.Errorf("took %v after %s", second, waited)
		}
		started = time.Now()
		third, _ := l.take(t.Context(), &pool{share: listed(own)}, 3, true)
		if waited := time.Since(started); waited != nodesWait || len(third) != 3 {
			t.Errorf("took %v after %s", third, waited)
		}
	})
}

// racked is an order over nodes of racks, by rack, whose pods are spread.
func racked(racks map[string][]string, pods map[string]int) preference {
	var groups []placement.Group
	for rack, nodes := range racks {
		groups = append(groups, placement.Group{Value: rack, First: nodes})
	}
	return preference{spread: placement.NewSpread(groups, pods, nil, 7)}
}

// A pass that spreads takes other nodes of a rack in place of those that somebody has; where a rack has no other it waits for
// one, but not for ever, and not where that rack is not the emptiest.
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
		"none other":              {[]string{"a0"}, nil, []string{"a0"}, nodesWait},
		"none of the rack":        {names("b", 20), nil, []string{"a0"}, nodesWait},
		"of a rack that has more": {[]string{"a0"}, map[string]int{"a": 2}, nil, 0},
		"of the emptiest":         {[]string{"a0"}, map[string]int{"b": 3, "c": 3}, []string{"a0"}, nodesWait},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := ledger{busy: map[string]int{}}
				for _, name := range tt.busy {
					l.busy[name] = 1
				}
				started := time.Now()
				from := &pool{share: racked(racks, tt.pods)}
				some, foreign := l.take(t.Context(), from, 3, true)
				if waited := time.Since(started); waited != tt.waited || len(foreign) > 0 {
					t.Errorf("took %v after %s, want that after %s", some, waited, tt.waited)
				}
				perRack, seen := map[string]int{}, map[string]bool{}
				for _, name := range some {
					if seen[name] || from.share.has(name) {
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
				if perRack["b"] == 0 || perRack["c"] == 0 || from.share.left() != 41-len(some) {
					t.Errorf("took %v and left %d", some, from.share.left())
				}
			})
		})
	}
}
