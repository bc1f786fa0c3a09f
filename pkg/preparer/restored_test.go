package preparer_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A restore brings back what a node reported when the snapshot was taken. Farms believe the realities of a node that has
// echoed the new epoch, so the node writes them anew before it echoes that (R1, P6). Here its session outlives the
// restore, so that the epoch alone tells the node of it.
func TestRealitiesAreWrittenBeforeTheEpochIsEchoed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.RelistEvery = time.Hour
	b.start()
	b.awaitServing()
	digest := b.upload(b.server("1"))
	b.tell(intent(0, digest, pod.Running, 10))
	now := b.awaitReady(0, digest, 10)
	for range 5 {
		b.mustSpeakAfterRealities(b.restore(now), 0)
	}
}

// slowServices is an agent whose first answers come late.
type slowServices struct {
	register.Services
	from time.Time
}

func (s *slowServices) LocalServices(ctx context.Context, key, value string) (map[string]consul.Health, error) {
	select {
	case <-time.After(time.Until(s.from)):
	case <-ctx.Done():
	}
	return s.Services.LocalServices(ctx, key, value)
}

// A preparer that starts after the restore knows what its pods do only once its agent has answered. It echoes the epoch
// no sooner.
func TestAPreparerThatStartsAfterARestore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.RelistEvery = time.Hour
	a := b.start()
	b.awaitServing()
	digest := b.upload(b.server("1"))
	b.tell(intent(0, digest, pod.Running, 10))
	now := b.awaitReady(0, digest, 10)
	a.stop()
	epoch := b.restore(now)
	b.cfg.Services = &slowServices{b.client.Services, time.Now().Add(time.Second)}
	b.start()
	b.mustSpeakAfterRealities(epoch, 0)
}

// restore makes the records as after a restore to a moment when a pod was starting, and returns the new epoch.
func (b *bench) restore(now pod.Reality) (epoch string) {
	b.t.Helper()
	then := now
	then.State, then.Available = pod.StateStarting, false
	schema := store.Schema{FormatVersion: store.FormatVersion, Epoch: store.NewID(), CreatedAt: time.Now()}
	b.commit(b.set(b.keys.Realities.Key(b.cfg.Node.Name, now.Identity.String()), then), b.set(b.keys.Schema.Key(), schema))
	return schema.Epoch
}

// mustSpeakAfterRealities waits until the node has echoed an epoch, and compares when it wrote that a pod is available.
func (b *bench) mustSpeakAfterRealities(epoch string, index int) {
	b.t.Helper()
	var echoed uint64
	b.awaitNode("the epoch", func(n node.Node, _ string) bool {
		rec, err := b.store.Node(b.t.Context(), n.Name)
		echoed = rec.Index
		return err == nil && rec.Value.Epoch == epoch
	})
	r, written, err := b.reality(index)
	if err != nil || !r.Available || written > echoed {
		b.t.Fatalf("the node has echoed the epoch at %d; its reality at %d says available %t: %v", echoed, written, r.Available, err)
	}
}

// set returns the operation that writes a record.
func (b *bench) set(key string, record any) consul.Op {
	b.t.Helper()
	data, err := json.Marshal(record)
	if err != nil {
		b.t.Fatal(err)
	}
	return consul.Set(key, data)
}
