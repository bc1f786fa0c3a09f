package manifest

import (
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// OnlyLimitsDiffer reports whether two manifests differ only in CPU or memory. A node can change these without a
// restart.
func OnlyLimitsDiffer(a, b *Manifest) bool {
	return !a.Same(b) && a.unlimited().Same(b.unlimited())
}

func (m *Manifest) unlimited() *Manifest {
	out := field.Copy(*m)
	for i := range out.Launchables {
		out.Launchables[i].Resources.CPU, out.Launchables[i].Resources.Memory = 0, 0
	}
	return &out
}

// Limits describes each launchable's limits: "cpu 500m, memory 64Mi", with names if there are several.
func (m *Manifest) Limits() string {
	var parts []string
	for i := range m.Launchables {
		l := &m.Launchables[i]
		text := l.Resources.limits()
		if len(m.Launchables) > 1 {
			text = l.Name + ": " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func (r Resources) limits() string {
	var parts []string
	if r.CPU > 0 {
		parts = append(parts, fmt.Sprintf("cpu %dm", int64(r.CPU)))
	}
	if r.Memory > 0 {
		parts = append(parts, "memory "+r.Memory.text())
	}
	if len(parts) == 0 {
		return "no limit of cpu and memory"
	}
	return strings.Join(parts, ", ")
}

// text uses the largest unit that gives a whole number.
func (b Bytes) text() string {
	for i, name := range []string{"Gi", "Mi", "Ki"} {
		if unit := int64(1) << (30 - 10*i); int64(b)%unit == 0 {
			return fmt.Sprintf("%d%s", int64(b)/unit, name)
		}
	}
	return fmt.Sprintf("%d bytes", int64(b))
}
