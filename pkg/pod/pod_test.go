package pod_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

func TestPlacementCheck(t *testing.T) {
	t.Parallel()
	good := pod.Placement{
		Identity: pod.Identity{RCID: "rc", Role: "main"}, Node: "n1", PodID: "p", Digest: strings.Repeat("d",
			64), RunState: pod.Running, Revision: 1,
		Ghosts: []pod.Ghost{{Node: "n2", Since: time.Unix(1, 0)}},
	}
	if err := good.Check(); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for name, tt := range map[string]struct {
		spoil func(*pod.Placement)
		says  string
	}{
		"no controller":      {func(p *pod.Placement) { p.RCID = "" }, "rc_id"},
		"no role":            {func(p *pod.Placement) { p.Role = "" }, "role"},
		"negative index":     {func(p *pod.Placement) { p.Identity.Index = -1 }, "index"},
		"no node":            {func(p *pod.Placement) { p.Node = "" }, "node"},
		"no manifest":        {func(p *pod.Placement) { p.Digest = "" }, "digest"},
		"no run state":       {func(p *pod.Placement) { p.RunState = "" }, "run_state"},
		"unknown run state":  {func(p *pod.Placement) { p.RunState = "paused" }, `"paused"`},
		"no revision":        {func(p *pod.Placement) { p.Revision = 0 }, "revision"},
		"ghost without node": {func(p *pod.Placement) { p.Ghosts = []pod.Ghost{{}} }, "ghosts.node"},
		"ghost in the past":  {func(p *pod.Placement) { p.Ghosts[0].Revision = -1 }, "ghosts.revision"},
	} {
		p := good
		p.Ghosts = append([]pod.Ghost(nil), good.Ghosts...)
		tt.spoil(&p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestIntentCheck(t *testing.T) {
	t.Parallel()
	good := pod.Intent{
		Identity: pod.Identity{RCID: "rc", Role: "main"}, PodID: "p", Digest: strings.Repeat("d", 64),
		State: pod.Running, Revision: 1,
	}
	if err := good.Check(); err != nil {
		t.Errorf("a good intent: %v", err)
	}
	stop := pod.Intent{Identity: good.Identity, State: pod.Stopped, Revision: 1}
	if err := stop.Check(); err != nil {
		t.Errorf("a stop needs no digest: %v", err)
	}
	for field, change := range map[string]func(*pod.Intent){
		"rc_id":    func(in *pod.Intent) { in.RCID = "../../etc" },
		"role":     func(in *pod.Intent) { in.Role = "a.b" },
		"index":    func(in *pod.Intent) { in.Index = -1 },
		"revision": func(in *pod.Intent) { in.Revision = 0 },
		"state":    func(in *pod.Intent) { in.State = "paused" },
		"pod_id":   func(in *pod.Intent) { in.PodID = "" },
		"digest":   func(in *pod.Intent) { in.Digest = "latest" },
	} {
		in := good
		change(&in)
		if err := in.Check(); err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("bad %s: got %v", field, err)
		}
	}
}

// A new revision is higher than all known revisions, up to the highest revision that records may have.
func TestNextRevision(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1000)
	for name, tt := range map[string]struct {
		seen []int64
		want int64
	}{
		"the clock's":     {nil, 1000},
		"one more":        {[]int64{1, 1000, 999}, 1001},
		"the last":        {[]int64{pod.MaxRevision - 1}, pod.MaxRevision},
		"none is left":    {[]int64{pod.MaxRevision}, pod.MaxRevision},
		"none was valid":  {[]int64{math.MaxInt64}, pod.MaxRevision},
		"nothing was set": {[]int64{0, -1}, 1000},
	} {
		if got := pod.NextRevision(now, tt.seen...); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}
