package manifest

import (
	"net/url"
	"path/filepath"
	"slices"
)

// HostPaths returns the node's paths that the manifest names, sorted: programs, archives (file://), files for its
// configuration ($file), and working directories.
func (m *Manifest) HostPaths() []string {
	var paths []string
	add := func(path string) {
		if filepath.IsAbs(path) {
			paths = append(paths, path)
		}
	}
	for i := range m.Launchables {
		l := &m.Launchables[i]
		add(l.Artifact.Path)
		if !l.Artifact.IsImage() {
			add(l.WorkDir)
		}
		if u, err := url.Parse(l.Artifact.URL); err == nil && u.Scheme == "file" {
			add(u.Path)
		}
	}
	program := func(launchable, path string) {
		if l := m.LaunchableOf(launchable); l == nil || !l.Artifact.IsImage() {
			add(path)
		}
	}
	if m.Health != nil && m.Health.Script != nil {
		program(m.Health.Script.Launchable, m.Health.Script.Path)
	}
	m.Hooks.Each(func(_ string, h *Hook) { program(h.Launchable, h.Path) })
	eachFile(map[string]any(m.Config), add)
	slices.Sort(paths)
	return slices.Compact(paths)
}

func eachFile(value any, do func(string)) {
	switch value := value.(type) {
	case map[string]any:
		if file, found := value[FileKey]; found {
			name, _ := file.(string) // anything else is not valid
			do(name)
			return
		}
		for _, inner := range value {
			eachFile(inner, do)
		}
	case []any:
		for _, inner := range value {
			eachFile(inner, do)
		}
	}
}
