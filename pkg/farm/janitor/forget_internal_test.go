package janitor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// fleet returns nodes by name. The number is the FreeIndex of a dead node; zero: the node lives.
func fleet(nodes map[string]uint64) Cluster {
	f := Cluster{Nodes: map[string]*node.View{}, Synced: true, Now: noon}
	for name, index := range nodes {
		f.Nodes[name] = &node.View{Node: node.Node{Name: name}, Alive: index == 0, FreeIndex: index}
	}
	return f
}

func TestGoneNodesAreNotedWithTheirTime(t *testing.T) {
	t.Parallel()
	earlier := noon.Add(-time.Hour)
	for name, tt := range map[string]struct {
		nodes  map[string]uint64
		before map[string]store.Death
		want   map[string]store.Death
	}{
		"no nodes": {},
		"all live": {nodes: map[string]uint64{"a": 0, "b": 0}},
		"one goes": {
			nodes: map[string]uint64{"a": 0, "b": 7}, want: map[string]store.Death{"b": {Index: 7, Since: noon}},
		},
		"it stays gone": {
			nodes:  map[string]uint64{"b": 7},
			before: map[string]store.Death{"b": {Index: 7, Since: earlier, SeenMS: 100}},
			want:   map[string]store.Death{"b": {Index: 7, Since: earlier, SeenMS: 2100}},
		},
		"it was back": {
			nodes:  map[string]uint64{"b": 9},
			before: map[string]store.Death{"b": {Index: 7, Since: earlier, SeenMS: 100}},
			want:   map[string]store.Death{"b": {Index: 9, Since: noon}},
		},
		"it is back": {
			nodes: map[string]uint64{"b": 0}, before: map[string]store.Death{"b": {Index: 7, Since: earlier}},
		},
		"its record was removed": {before: map[string]store.Death{"b": {Index: 7, Since: earlier}}},
	} {
		f := fleet(tt.nodes)
		f.Passed = 2 * time.Second
		if got := f.Deaths(tt.before); !maps.Equal(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// Even if very many nodes are gone, they fit in one record, and nodes that are noted stay noted.
func TestAtMostAThousandGoneNodesAreNoted(t *testing.T) {
	t.Parallel()
	nodes := map[string]uint64{}
	for i := range 2 * maxNoted {
		nodes[fmt.Sprintf("n%04d", i)] = 1
	}
	f := fleet(nodes)
	was := store.Death{Index: 1, Since: noon.Add(-time.Hour)}
	last := fmt.Sprintf("n%04d", 2*maxNoted-1)
	got := f.Deaths(map[string]store.Death{last: was})
	if len(got) != maxNoted || got[last] != was || got["n0000"].Index != 1 {
		t.Errorf("%d noted", len(got))
	}
}

func TestNodesGoneForLongAreDueTheLongestFirst(t *testing.T) {
	t.Parallel()
	seen := func(d time.Duration) store.Death { return store.Death{SeenMS: d.Milliseconds()} }
	noted := map[string]store.Death{
		"new": seen(0), "late": seen(59 * time.Minute),
		"b": seen(time.Hour), "a": seen(time.Hour), "old": seen(2 * time.Hour),
		"by a clock that was wrong": {Since: noon.Add(-1000 * time.Hour)},
	}
	if got, want := Due(noted, time.Hour), []string{"old", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// No time counts twice, and a clock that jumps adds at most two steps.
func TestTimeCountsInSteps(t *testing.T) {
	t.Parallel()
	f := NewForgetter(ForgetConfig{After: time.Hour}) // looks every six minutes
	now := noon
	for i, step := range []struct{ moves, want time.Duration }{
		{0, 0},
		{6 * time.Minute, 6 * time.Minute},
		{0, 0},
		{11 * time.Minute, 11 * time.Minute},
		{100 * time.Hour, 12 * time.Minute},
		{-100 * time.Hour, 0},
		{time.Minute, time.Minute},
		{-time.Second, 0},
		{12*time.Minute + 1, 12 * time.Minute},
	} {
		now = now.Add(step.moves)
		if got := f.passed(now); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

func TestNoNodeIsForgottenIfMostAreGone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		living, dead, drained int // drained: dead, too
		unsynced              bool
		want                  bool
	}{
		"none":              {},
		"all live":          {living: 3, want: true},
		"most live":         {living: 3, dead: 2, want: true},
		"half live":         {living: 2, dead: 2},
		"one of two":        {living: 1, dead: 1},
		"most are gone":     {living: 2, dead: 3},
		"all are gone":      {dead: 5},
		"all were drained":  {drained: 5},
		"most were drained": {living: 2, drained: 5, want: true},
		"half of the rest":  {living: 2, dead: 2, drained: 5},
		"some not spoken":   {living: 5, dead: 1, unsynced: true},
	} {
		nodes := map[string]uint64{}
		for i := range tt.living {
			nodes[fmt.Sprintf("l%d", i)] = 0
		}
		for i := range tt.dead + tt.drained {
			nodes[fmt.Sprintf("d%d", i)] = 5
		}
		f := fleet(nodes)
		for i := range tt.drained {
			f.Nodes[fmt.Sprintf("d%d", i)].Ops.Drain = &node.Drain{}
		}
		f.Synced = !tt.unsynced
		if got := f.Sound(); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestOneNodeOfAHundredIsForgottenInALook(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{1: 1, 99: 1, 199: 1, 200: 2, 5000: 50} {
		nodes := map[string]uint64{}
		for i := range n {
			nodes[fmt.Sprint(i)] = 0
		}
		f := fleet(nodes)
		if got := f.Quota(); got != want {
			t.Errorf("%d of %d nodes, want %d", got, n, want)
		}
	}
}

func TestAGoneNodeIsKeptForAReason(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		view node.View
		left store.LeftOn
		want Reason
	}{
		"nothing":       {},
		"a reservation": {left: store.LeftOn{Reservation: 5}},
		"a pod": {
			left: store.LeftOn{Copies: 1, Claims: 1, Intents: 1}, want: KeptByPods,
		},
		"a claim":   {left: store.LeftOn{Claims: 1}, want: KeptByClaims},
		"an intent": {left: store.LeftOn{Intents: 1}, want: KeptByRecords},
		"a report":  {left: store.LeftOn{Reports: 1}, want: KeptByRecords},
		"garbage": {
			left: store.LeftOn{Unreadable: errors.New("garbage")}, want: KeptByRecords,
		},
		"an orphan": {
			view: node.View{Node: node.Node{Orphans: []pod.Orphan{{}}}}, want: KeptByOrphans,
		},
		"orphans left out": {
			view: node.View{Node: node.Node{OrphansLeftOut: 1}}, want: KeptByOrphans,
		},
		"orphans not read":      {view: node.View{OrphansUnread: true}, want: KeptByOrphans},
		"a drain keeps nothing": {view: node.View{Ops: node.Ops{Drain: &node.Drain{}}}},
		"silent since the records were restored": {
			view: node.View{Node: node.Node{Epoch: "another"}}, want: KeptByOrphans,
		},
		"it never spoke": {
			view: node.View{Node: node.Node{Epoch: "none"}}, want: KeptByOrphans,
		},
	} {
		switch tt.view.Epoch {
		case "":
			tt.view.Epoch = "now"
		case "none":
			tt.view.Epoch = ""
		}
		if got := keeps(&tt.view, tt.left, "now"); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
