package farm_test

import (
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A repair that writes a placement unchanged does not change the placement's index. The owner goes on from its memory,
// with a step of the rollout and more passes. It must not take its own records for older ones.
func TestRollingAfterARepair(t *testing.T) {
	t.Parallel()
	s := newService(t, "n1")
	stop := s.rollingFarm("f1", s.addr, nil)
	s.first(4)
	stop()
	before, err := s.store.Schema.Get(t.Context(), store.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	lost := []consul.Op{consul.Delete(s.store.Keys().Reservations.Key("n1"))}
	if _, err := s.client.Commit(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	s.deploy(2, 4, nil)
	s.rollingFarm("f2", s.addr, nil)
	s.ended(2, rollout.Done)
	s.only(rolled2, 4)
	after, err := s.store.Schema.Get(t.Context(), store.Consistent)
	if err != nil || after.Value.Epoch != before.Value.Epoch {
		t.Errorf("the epoch was %s and is %s, %v", before.Value.Epoch, after.Value.Epoch, err)
	}
}
