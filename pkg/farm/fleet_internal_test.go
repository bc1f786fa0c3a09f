package farm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// census says what it is told to, and counts how often it was read.
type census struct {
	mark                      store.FleetMark
	noMark, noCount, noRecord error
	found                     map[string]store.Orphaned
	read                      int
}

func (c *census) FleetMark(context.Context) (store.FleetMark, error) {
	if c.noMark != nil {
		return store.FleetMark{}, c.noMark
	}
	return c.mark, nil
}

func (c *census) CountReplicas(context.Context, string) (map[string]store.Replicas, error) {
	c.read++
	return nil, c.noCount
}

func (c *census) OrphanedRecords(context.Context) (map[string]store.Orphaned, error) {
	return c.found, c.noRecord
}

// Nothing is read where nothing has changed, but for once in ten minutes; what could not be read is read again, and is not taken for found.
func TestTheFleetIsCountedWhereItHasChanged(t *testing.T) {
	t.Parallel()
	f := newSpeaker(&core{cfg: Config{Metrics: NewMetrics(prometheus.NewRegistry())}, log: obs.Discard()})
	errAway := errors.New("away")
	as := &census{mark: store.FleetMark{1}}
	var last fleetCount
	for _, step := range []struct {
		name   string
		change func()
		reads  int
		looked bool
		want   []string
	}{
		{"at first", func() { as.found = map[string]store.Orphaned{"a": {}} }, 1, true, []string{"a"}},
		{"nothing has changed", func() { as.found = nil }, 0, true, []string{"a"}},
		{"another mark", func() { as.mark[4], as.found = 1, map[string]store.Orphaned{"b": {}} }, 1, true, []string{"b"}},
		{"no mark", func() { as.noMark = errAway }, 1, true, []string{"b"}},
		{"again one", func() { as.noMark = nil }, 1, true, []string{"b"}},
		{"the same", func() {}, 0, true, []string{"b"}},
		{"no replicas", func() { as.mark[0]++; as.noCount = errAway }, 1, true, []string{"b"}},
		{"again", func() { as.noCount = nil }, 1, true, []string{"b"}},
		{"no records", func() { as.mark[0]++; as.noRecord, as.found = errAway, nil }, 1, false, []string{"b"}},
		{"none yet", func() {}, 1, false, []string{"b"}},
		{"at last", func() { as.noRecord, as.found = nil, map[string]store.Orphaned{"c": {}} }, 1, true, []string{"c"}},
		{"for long", func() { last.at = last.at.Add(time.Second - maxUncounted) }, 0, true, []string{"c"}},
		{"for too long", func() { last.at = last.at.Add(-time.Second) }, 1, true, []string{"c"}},
	} {
		before := as.read
		step.change()
		now, looked := f.countAnew(t.Context(), as, last)
		if got := slices.Sorted(maps.Keys(now.orphans)); as.read-before != step.reads || looked != step.looked || !slices.Equal(got, step.want) {
			t.Errorf("%s: %d reads, looked %v, found %v; want %+v", step.name, as.read-before, looked, got, step)
		}
		last = now
	}
}
