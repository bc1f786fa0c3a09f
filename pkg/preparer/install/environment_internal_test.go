package install

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// A manifest may use exactly the variables that Expand recognises.
func TestVariablesOfManifestsAreThoseOfTheNode(t *testing.T) {
	t.Parallel()
	m := &manifest.Manifest{
		ID: "web", Launchables: []manifest.Launchable{{Name: "a"}}, Volumes: []manifest.Volume{{Name: "data-1"}},
		Ports: []manifest.Port{{Name: "http-main", Port: 8080}, {Name: "admin", Dynamic: true}},
	}
	v := &Version{
		n: &Node{}, M: m, ID: pod.Identity{RCID: "rc", Role: "main"},
		In: &Installed{Digest: "d", Replicas: 3, Ports: map[string]int{"http-main": 8080, "admin": 20000}},
	}
	var set []string
	for name := range maps.Keys(v.nodeEnv(&m.Launchables[0])) {
		if text := "${" + name + "}"; manifest.Expand(text, nil) != text {
			set = append(set, name)
		}
	}
	slices.Sort(set)
	if diff := cmp.Diff(m.Variables(), set); diff != "" {
		t.Errorf("a manifest may name (-), the node sets (+):\n%s", diff)
	}
}
