package farm_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// If the rollout's record is removed just before the pod that runs once is placed, the pod is not placed, because no
// rollout would wait for its end.
func TestRollingAPreDeployWhoseRolloutVanishes(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1", "once")
	proxy := consultest.StartProxy(t, s.addr)
	s.rollingFarm("f", proxy.Addr, nil)
	s.first(2)
	keys, vanished, once := s.store.Keys(), make(chan struct{}), sync.Once{}
	proxy.Set(func(r *http.Request) consultest.Verdict {
		if r.URL.Path != "/v1/txn" {
			return consultest.Forward
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		places := bytes.Contains(body, []byte(keys.Pods.Key(rolledPre))) && bytes.Contains(body, []byte(`"cas"`))
		if places && strings.Contains(string(body), keys.Intents.Key()) {
			once.Do(func() {
				if _, err := s.client.Commit(t.Context(),
					[]consul.Op{consul.Delete(keys.Rollouts.Key(rolled))}); err != nil {
					t.Error(err)
				}
				close(vanished)
			})
		}
		return consultest.Forward
	})
	s.deploy(2, 2, withPreDeploy)
	<-vanished
	s.ring(rolled)
	s.condition(rolledPre, rc.Converged, false, "the controller is disabled")
	placed, err := s.client.Keys(t.Context(), keys.Pods.Key(rolledPre))
	if err != nil || len(placed) > 0 {
		t.Errorf("placed %q, %v", placed, err)
	}
}

// A batch of a service's controller depends on the rollout as it was read. If a rollout begins just before the batch,
// Consul refuses the batch, and the owner decides again.
func TestRollingABatchDependsOnTheRollout(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	proxy := consultest.StartProxy(t, s.addr)
	s.rollingFarm("f", proxy.Addr, nil)
	s.first(2)
	s.set(func() { s.least, s.most = 0, 0 })
	keys, first := s.store.Keys(), sync.Once{}
	var sent atomic.Int32
	proxy.Set(func(r *http.Request) consultest.Verdict {
		if r.URL.Path != "/v1/txn" {
			return consultest.Forward
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(keys.Pods.Key(rolled1)+"/main.2")) &&
			bytes.Contains(body, []byte(`"check-session"`)) {
			sent.Add(1)
			first.Do(func() { s.rolls(rolled) })
		}
		return consultest.Forward
	})
	rec, err := s.store.RCs.Get(t.Context(), store.Consistent, rolled1)
	if err != nil {
		t.Fatal(err)
	}
	three := 3
	rec.Value.ReplicaGroups[0].Count = &three
	rec.Value.Generation++
	change := store.RCChange{RC: rec.Value, Index: rec.Index, Audit: store.NewAudit("op", "scale", rolled1, nil)}
	if err := s.store.Operator.ChangeRC(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	s.run(rolled1, 3)
	if sent.Load() < 2 {
		t.Error("the batch landed although a rollout had begun")
	}
}
