package farm_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// The pod that runs once is not placed where the rollout vanishes just before that: nobody would wait for its end.
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
				if _, err := s.client.Commit(t.Context(), []consul.Op{consul.Delete(keys.Rollouts.Key(rolled))}); err != nil {
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
