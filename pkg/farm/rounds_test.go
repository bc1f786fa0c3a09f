package farm_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// diary notes what a farm does about its only unit.
type diary struct {
	farm.Session
	*pages
}

type pages struct {
	mu       sync.Mutex
	done     []string
	statuses []rc.Status
}

func (p *pages) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = append(p.done, what)
}

func (d diary) ReadUnit(ctx context.Context, id string, level store.Level) (store.Unit, error) {
	d.note("read")
	return d.Session.ReadUnit(ctx, id, level)
}

func (d diary) Commit(ctx context.Context, b *store.Batch) error {
	err := d.Session.Commit(ctx, b)
	if err == nil && slices.ContainsFunc(b.Pods, func(w store.PodWrite) bool { return w.Placement == nil }) {
		d.note("forget")
		d.mu.Lock()
		defer d.mu.Unlock()
		if b.Status != nil {
			d.statuses = append(d.statuses, *b.Status)
		}
	}
	return err
}

func (d diary) Finish(
	ctx context.Context, f store.Fence, rec store.Rec[rc.RC], last, schema uint64, a store.Audit,
) error {
	d.note("finish")
	return d.Session.Finish(ctx, f, rec, last, schema, a)
}

// The same look does what a pass has made possible, without another read. The status that lands with the removal of a
// pod does not have the pod any more.
func TestALookGoesOnFromWhatItHasWritten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	p := &pages{}
	c.farmWith("f1", nil, func(s farm.Session) farm.Session { return diary{s, p} })
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })
	c.nothingLeft("web")
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.done) - 1 - slices.Index(reversed(p.done), "forget")
	if last+1 >= len(p.done) || p.done[last+1] != "finish" {
		t.Errorf("the last pod was not removed in the look that removed the controller: %q", p.done)
	}
	if st := p.statuses; len(st) != 2 || !st[0].Is(rc.Converged) || st[0].Stopping != 0 || st[1].Stopping != 0 {
		t.Errorf("statuses with the removals of pods: %+v", p.statuses)
	}
}

func reversed(lines []string) []string {
	lines = slices.Clone(lines)
	slices.Reverse(lines)
	return lines
}
