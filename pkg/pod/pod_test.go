package pod_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

func TestPlacementCheck(t *testing.T) {
	t.Parallel()
	good := pod.Placement{
		Identity: pod.Identity{RCID: "rc", Role: "main"}, Node: "n1", Digest: "d", RunState: pod.Stopped, Revision: 1,
		Ghosts: []pod.Ghost{{Node: "n2", Since: time.Unix(1, 0)}},
	}
	if err := good.Check(); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for name, tt := range map[string]struct {
		spoil func(*pod.Placement)
		says  string
	}{
		"no controller":      {func(p *pod.Placement) { p.RCID = "" }, "identity"},
		"no role":            {func(p *pod.Placement) { p.Role = "" }, "identity"},
		"negative index":     {func(p *pod.Placement) { p.Identity.Index = -1 }, "identity"},
		"no node":            {func(p *pod.Placement) { p.Node = "" }, "node"},
		"no manifest":        {func(p *pod.Placement) { p.Digest = "" }, "manifest"},
		"no run state":       {func(p *pod.Placement) { p.RunState = "" }, "run state"},
		"unknown run state":  {func(p *pod.Placement) { p.RunState = "paused" }, `"paused"`},
		"no revision":        {func(p *pod.Placement) { p.Revision = 0 }, "revision"},
		"ghost without node": {func(p *pod.Placement) { p.Ghosts = []pod.Ghost{{}} }, "former copy"},
		"ghost in the past":  {func(p *pod.Placement) { p.Ghosts[0].Revision = -1 }, "former copy"},
	} {
		p := good
		p.Ghosts = append([]pod.Ghost(nil), good.Ghosts...)
		tt.spoil(&p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
