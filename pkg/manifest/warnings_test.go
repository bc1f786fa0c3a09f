package manifest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func TestWarnings(t *testing.T) {
	t.Parallel()
	low := manifest.Port{Name: "http", Port: 80}
	const said = "ports[0].port: 80 is below 1024, and no launchable has the user root: most nodes let nobody else " +
		"listen there"
	for name, tt := range map[string]struct {
		users []string
		ports []manifest.Port
		want  []string
	}{
		"no ports":           {users: []string{""}},
		"the pod's own user": {users: []string{""}, ports: []manifest.Port{low}, want: []string{said}},
		"another user":       {users: []string{"www", "web"}, ports: []manifest.Port{low}, want: []string{said}},
		"root":               {users: []string{"root"}, ports: []manifest.Port{low}},
		"root among them":    {users: []string{"", "root"}, ports: []manifest.Port{low}},
		"the last, and 1024": {
			users: []string{""},
			ports: []manifest.Port{
				{Name: "a", Port: 1024},
				{Name: "b", Port: 1023},
			}, want: []string{"ports[1].port: 1023" + said[len("ports[0].port: 80"):]},
		},
		"the farm's choice": {users: []string{""}, ports: []manifest.Port{{Name: "http", Dynamic: true}}},
	} {
		m := &manifest.Manifest{Ports: tt.ports}
		for _, user := range tt.users {
			m.Launchables = append(m.Launchables, manifest.Launchable{User: user})
		}
		if diff := cmp.Diff(tt.want, m.Warnings()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A pod with an image and without a check may rely on a check of the image.
func TestWarningOfIgnoredChecks(t *testing.T) {
	t.Parallel()
	m := decode(t, allImage)
	if got := m.Warnings(); len(got) != 0 {
		t.Errorf("with a check: %q", got)
	}
	m.Health = nil
	want := []string{"health: missing, and a HEALTHCHECK of an image is ignored: only health checks that the pod works"}
	if diff := cmp.Diff(want, m.Warnings()); diff != "" {
		t.Error(diff)
	}
}
