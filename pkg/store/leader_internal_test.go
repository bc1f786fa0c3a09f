package store

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Each write of a leader goes through the function that adds its fence. If it refuses, nothing is written.
func TestALeaderHasNoOtherWay(t *testing.T) {
	t.Parallel()
	st, _, _ := nodeSession(t)
	k, ctx := st.keys, t.Context()
	one := 1
	record := rc.RC{
		ID: "a", Name: "a", ManifestDigest: "m", Generation: 1,
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &one}},
	}
	write(t, st, consul.Set(k.RCs.Key("a"), asJSON(record)), consul.Set(k.Drops.Key("gone"), nil),
		consul.Set(k.Manifests.Key("m"), nil),
		consul.Set(k.Audits.Key("x"), nil),
		consul.Set(k.NodeOps.Key("n1"), asJSON(node.Ops{Name: "n1", Drain: &node.Drain{Since: time.Now()}})))
	errFence := errors.New("not the leader")
	asked := 0
	leader := st.Leader("f", func(_ context.Context, ops []consul.Op) (map[string]uint64, error) {
		if asked++; len(ops) == 0 || len(ops) > consul.MaxTxnOps-2 {
			t.Errorf("%d operations", len(ops))
		}
		return nil, errFence
	})
	unowned, ok, err := leader.ReadUnowned(ctx, "a")
	if err != nil || !ok {
		t.Fatalf("%+v, %t, %v", unowned, ok, err)
	}
	all := func() map[string]uint64 {
		pairs, err := st.c.List(ctx, k.Prefix(), consul.Consistent)
		if err != nil {
			t.Fatal(err)
		}
		indices := map[string]uint64{}
		for _, p := range pairs {
			indices[p.Key] = p.ModifyIndex
		}
		return indices
	}
	before := all()
	for name, act := range map[string]func() error{
		"status": func() error { return leader.ReportUnowned(ctx, unowned, rc.Status{RCID: "a"}) },
		"incidents": func() error {
			return leader.WriteIncidents(ctx,
				Rec[Incidents]{Value: Incidents{Records: map[string][]rc.Incident{"k": {{Key: "k"}}}}})
		},
		"mend":  func() error { _, err := leader.MendReservation(ctx, "n1"); return err },
		"audit": func() error { _, err := leader.DeleteAudit(ctx, []string{"x"}); return err },
		"manifest": func() error {
			return leader.DeleteManifest(ctx, ManifestRef{Digest: "m", Index: before[k.Manifests.Key("m")]})
		},
		"gone": func() error {
			return leader.WriteGone(ctx, Rec[Gone]{Value: Gone{Nodes: map[string]Death{"n1": {}}}})
		},
		"node": func() error { return leader.RemoveNode(ctx, NodeRemoval{Name: "n1"}) },
		"repair": func() error {
			return leader.AskRepair(ctx, "a", "n1", NewAudit("f", "repair-reservation", "a", nil))
		},
		"drops": func() error { _, err := leader.SweepDrops(ctx, 9); return err },
	} {
		n := asked
		if err := act(); !errors.Is(err, errFence) || asked == n {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := all(); !maps.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}
