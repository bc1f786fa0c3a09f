package manifest

import "slices"

// HasImages reports whether a part of the pod runs in a container.
func (m *Manifest) HasImages() bool {
	return slices.ContainsFunc(m.Launchables, func(l Launchable) bool { return l.Artifact.IsImage() })
}
