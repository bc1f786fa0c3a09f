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

// A restore brings back old realities. Farms trust a node's realities when it has echoed the new epoch. So the node
// writes its realities again before the echo (R1, P6). Here the session survives, so only the epoch shows the restore.
func TestRealitiesAreWrittenBeforeTheEpochIsEchoed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.RelistEvery = time.Hour
	b.start()
	b.awaitServing()
	digest := b.upload(b.server("1"))
	b.write(intent(0, digest, pod.Running, 10))
	now := b.awaitReady(0, digest, 10)
	for range 5 {
		b.mustSpeakAfterRealities(b.restore(now), 0)
	}
}

// slowServices does not answer before from.
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

// A preparer that starts after a restore knows its pods' state, and echoes the epoch, only when its agent has answered.
func TestTheEpochIsNotEchoedBeforeTheAgentAnswers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.cfg.RelistEvery = time.Hour
	a := b.start()
	b.awaitServing()
	digest := b.upload(b.server("1"))
	b.write(intent(0, digest, pod.Running, 10))
	now := b.awaitReady(0, digest, 10)
	a.stop()
	epoch := b.restore(now)
	b.cfg.Services = &slowServices{b.client.Services, time.Now().Add(time.Second)}
	b.start()
	b.mustSpeakAfterRealities(epoch, 0)
}

// restore makes the epoch new, and the reality as it was when the pod was starting.
func (b *bench) restore(now pod.Reality) (epoch string) {
	b.t.Helper()
	then := now
	then.State, then.Available = pod.StateStarting, false
	schema := store.Schema{FormatVersion: store.FormatVersion, Epoch: store.NewID(), CreatedAt: time.Now()}
	b.commit(
		b.set(b.keys.Realities.Key(b.cfg.Node.Name, now.Identity.String()), then), b.set(b.keys.Schema.Key(), schema),
	)
	return schema.Epoch
}

// mustSpeakAfterRealities: the reality was written before the epoch was echoed.
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
		b.t.Fatalf("the node has echoed the epoch at %d; its reality at %d has available %t: %v",
			echoed, written, r.Available, err)
	}
}

func (b *bench) set(key string, record any) consul.Op {
	b.t.Helper()
	data, err := json.Marshal(record)
	if err != nil {
		b.t.Fatal(err)
	}
	return consul.Set(key, data)
}
