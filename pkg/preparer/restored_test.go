package preparer_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
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
		then := now
		then.State, then.Available = pod.StateStarting, false
		schema := store.Schema{FormatVersion: store.FormatVersion, Epoch: store.NewID(), CreatedAt: time.Now()}
		b.commit(b.set(b.keys.Realities.Key(b.cfg.Node.Name, now.Identity.String()), then), b.set(b.keys.Schema.Key(), schema))
		var echoed uint64
		b.awaitNode("the epoch", func(n node.Node, _ string) bool {
			rec, err := b.store.Node(t.Context(), n.Name)
			echoed = rec.Index
			return err == nil && rec.Value.Epoch == schema.Epoch
		})
		r, written, err := b.reality(0)
		if err != nil || !r.Available || written > echoed {
			t.Fatalf("the node has echoed the epoch at %d; its reality at %d says %+v: %v", echoed, written, r, err)
		}
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
