package farm

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// census returns what a test sets, and counts its reads.
type census struct {
	mark                      store.ReplicasMark
	noMark, noCount, noRecord error
	found                     []ownerless.Finding
	read                      int
}

func (c *census) ReplicasMark(context.Context) (store.ReplicasMark, error) {
	if c.noMark != nil {
		return store.ReplicasMark{}, c.noMark
	}
	return c.mark, nil
}

func (c *census) CountReplicas(context.Context, string) (map[string]store.Replicas, error) {
	c.read++
	return nil, c.noCount
}

func (c *census) OrphanedRecords(context.Context) ([]ownerless.Finding, error) {
	return c.found, c.noRecord
}

func finding(key string) []ownerless.Finding {
	return []ownerless.Finding{{Record: ownerless.Record{Key: key}}}
}

// If nothing has changed, the leader reads again only after ten minutes. It repeats a read that failed, and does not
// report its result as known.
func TestTheClusterIsCountedAfterChanges(t *testing.T) {
	t.Parallel()
	f := newLeaderReporter(&core{cfg: Config{Metrics: NewMetrics(prometheus.NewRegistry())}, log: obs.Discard()})
	errAway := errors.New("away")
	as := &census{mark: store.ReplicasMark{1}}
	var last clusterCount
	for _, step := range []struct {
		name   string
		change func()
		reads  int
		looked bool
		want   []string
	}{
		{"at first", func() { as.found = finding("a") }, 1, true, []string{"a"}},
		{"nothing has changed", func() { as.found = nil }, 0, true, []string{"a"}},
		{"another mark", func() { as.mark[4], as.found = 1, finding("b") }, 1, true, []string{"b"}},
		{"no mark", func() { as.noMark = errAway }, 1, true, []string{"b"}},
		{"again one", func() { as.noMark = nil }, 1, true, []string{"b"}},
		{"the same", func() {}, 0, true, []string{"b"}},
		{"no replicas", func() { as.mark[0]++; as.noCount = errAway }, 1, true, []string{"b"}},
		{"again", func() { as.noCount = nil }, 1, true, []string{"b"}},
		{"no records", func() { as.mark[0]++; as.noRecord, as.found = errAway, nil }, 1, false, []string{"b"}},
		{"none yet", func() {}, 1, false, []string{"b"}},
		{"at last", func() { as.noRecord, as.found = nil, finding("c") }, 1, true, []string{"c"}},
		{"for long", func() { last.at = last.at.Add(time.Second - maxUncounted) }, 0, true, []string{"c"}},
		{"for too long", func() { last.at = last.at.Add(-time.Second) }, 1, true, []string{"c"}},
	} {
		before := as.read
		step.change()
		now, looked := f.recount(t.Context(), as, last)
		got := field.Each(now.orphans, func(f ownerless.Finding) string { return f.Key })
		if as.read-before != step.reads || looked != step.looked || !slices.Equal(got, step.want) {
			t.Errorf("%s: %d reads, looked %v, found %v; want %+v", step.name, as.read-before, looked, got, step)
		}
		last = now
	}
}
