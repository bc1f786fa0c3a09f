package manifest

import (
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// OnlyLimitsDiffer reports whether two manifests differ in the CPU or the memory of launchables, and in nothing else
// but in which defaults are written out. Limits of CPU and memory are those of what runs: they change without a
// restart.
func OnlyLimitsDiffer(a, b *Manifest) bool {
	return !a.Same(b) && a.unlimited().Same(b.unlimited())
}

// unlimited returns the manifest without limits of CPU and memory.
func (m *Manifest) unlimited() *Manifest {
	out := field.Copy(*m)
	for i := range out.Launchables {
		out.Launchables[i].Resources.CPU, out.Launchables[i].Resources.Memory = 0, 0
	}
	return &out
}

// Limits says in words what CPU and memory each launchable may take: "cpu 500m, memory 64Mi". Where there are several,
// their names stand before it.
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

// text is the number of bytes with the largest unit that leaves no rest.
func (b Bytes) text() string {
	for i, name := range []string{"Gi", "Mi", "Ki"} {
		if unit := int64(1) << (30 - 10*i); int64(b)%unit == 0 {
			return fmt.Sprintf("%d%s", int64(b)/unit, name)
		}
	}
	return fmt.Sprintf("%d bytes", int64(b))
}
