package manifest

import (
	"bytes"
	"cmp"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// WithDefaults returns the manifest with the defaults that are the same on all nodes. It is only for comparisons:
// stored and signed manifests have no defaults.
func (m *Manifest) WithDefaults() *Manifest {
	out := field.Copy(*m)
	ready := field.Duration(m.ReadyAfter())
	out.MinReady = &ready
	for i := range out.Launchables {
		out.Launchables[i].fill()
	}
	first := ""
	if len(out.Launchables) > 0 {
		first = out.Launchables[0].Name
	}
	if s := out.Service; s != nil {
		s.Name = cmp.Or(s.Name, out.ID)
		fill(&s.Drain, DefaultDrain)
	}
	if h := out.Health; h != nil {
		h.MinReady = nil // MinReady of the pod replaces it
		fill(&h.Interval, DefaultHealthInterval)
		fill(&h.Timeout, DefaultHealthTimeout)
		fill(&h.InitialDelay, 0)
		h.SuccessThreshold, h.FailureThreshold = cmp.Or(h.SuccessThreshold, 1), cmp.Or(h.FailureThreshold, 1)
		if h.Script != nil {
			h.Script.Launchable = cmp.Or(h.Script.Launchable, first)
		}
	}
	out.Hooks.Each(func(_ string, h *Hook) {
		h.Launchable = cmp.Or(h.Launchable, first)
		fill(&h.Timeout, DefaultHookTimeout)
	})
	return &out
}

// Same reports whether two manifests with their defaults are equal, so they make the same processes.
func (m *Manifest) Same(other *Manifest) bool {
	a, errA := m.WithDefaults().Canonical()
	b, errB := other.WithDefaults().Canonical()
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

func (l *Launchable) fill() {
	if l.Artifact.Kind == ArtifactTar {
		l.Command = cmp.Or(l.Command, DefaultCommand)
	}
	l.StopSignal = cmp.Or(l.StopSignal, DefaultStopSignal)
	fill(&l.StopGrace, DefaultStopGrace)
	if l.Restart == nil {
		l.Restart = &Restart{}
	}
	l.Restart.Policy = cmp.Or(l.Restart.Policy, RestartAlways)
	fill(&l.Restart.BackoffMin, DefaultBackoffMin)
	fill(&l.Restart.BackoffMax, DefaultBackoffMax)
	l.Resources.PIDs = l.Resources.MaxPIDs()
}

func fill(d **field.Duration, to time.Duration) {
	if *d == nil {
		value := field.Duration(to)
		*d = &value
	}
}
