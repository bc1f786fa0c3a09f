package farm_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// While the breaker's record cannot be read, a rollout makes no progress, and its record has the reason. An operator
// can still abort it.
func TestRollingABreakerThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	s.rollingFarm("f", s.addr, nil)
	s.first(2)
	garbage := []consul.Op{consul.Set(s.store.Keys().Breaker.Key(), []byte("{"))}
	if _, err := s.client.Commit(t.Context(), garbage); err != nil {
		t.Fatal(err)
	}
	s.deploy(2, 2, nil)
	s.rolling(func(r *rollout.Record) bool { return r.BlockedReason != "" })
	s.request(rollout.AbortVerb)
	s.ended(2, rollout.Aborted)
}
