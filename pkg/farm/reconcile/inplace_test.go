package reconcile_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// inPlace limits the upgrade of a row. The first pods have the new manifest, as many as updated, and the others have
// the former one.
func inPlace(pods, desired, updated, limit int) *reconcile.Snapshot {
	s := row(pods, desired)
	s.RC.MinAvailable = count(0)
	s.Rollout, s.RC.InPlace = "web/1", &rc.InPlace{From: "m0", Limit: limit}
	s.Manifests = map[string]*manifest.Manifest{"m0": {Version: 1, ID: "former"}}
	for i := updated; i < pods; i++ {
		s.Pods[i].Digest, s.Pods[i].Reality.Digest = "m0", "m0"
	}
	return s
}

// upgrades returns which pods a plan upgrades, with their new manifests.
func upgrades(plan *reconcile.Plan) (to []string) {
	for _, ch := range plan.Changes {
		if ch.Action == reconcile.Upgrade {
			to = append(to, fmt.Sprintf("%s.%d %s %s", ch.Identity.Role, ch.Identity.Index, ch.Placement.PodID,
				ch.Placement.Digest))
		}
	}
	return to
}

// Pods get the new manifest one by one, up to the limit. Pods beyond the limit get the former manifest again, if there
// is one.
func TestAnUpgradeInPlaceKeepsToItsLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		updated, limit int
		change         func(*reconcile.Snapshot)
		want           string
		blocked        bool
	}{
		"none yet":            {0, 2, nil, "main.0 p m1", false},
		"one more":            {1, 2, nil, "main.1 p m1", false},
		"enough":              {2, 2, nil, "", false},
		"limit 0":             {0, 0, nil, "", false},
		"too many":            {3, 2, nil, "main.2 former m0", false},
		"far too many":        {3, 0, nil, "main.2 former m0", false},
		"too many, one sick":  {3, 2, func(s *reconcile.Snapshot) { sick(s, 1) }, "main.1 former m0", false},
		"too many, no former": {3, 2, func(s *reconcile.Snapshot) { s.RC.InPlace.From = "" }, "", false},
		"too many, the same":  {3, 2, func(s *reconcile.Snapshot) { s.RC.InPlace.From = "m1" }, "", false},
		"former unread":       {3, 2, func(s *reconcile.Snapshot) { s.Manifests = nil }, "", false},
		"new unread":          {1, 2, func(s *reconcile.Snapshot) { s.Manifest = nil }, "", false},
		"back, one is on its way": {2, 0, func(s *reconcile.Snapshot) {
			s.Pods[2].Switching, s.Pods[2].ChangedAt = true, s.Now
			sick(s, 2)
		}, "", false},
		"back, one that never was upgraded is sick": {
			2, 0, func(s *reconcile.Snapshot) { sick(s, 2) }, "main.1 former m0", false,
		},
		"back, one has failed to go back": {2, 0, func(s *reconcile.Snapshot) {
			s.Pods[2].Switching = true
			sick(s, 2)
		}, "", true},
		"back, the failed one first, at the minimum": {2, 0, func(s *reconcile.Snapshot) {
			s.RC.MinAvailable = count(2)
			sick(s, 0)
		}, "main.0 former m0", false},
		"back, no room":           {2, 0, func(s *reconcile.Snapshot) { s.RC.MinAvailable = count(3) }, "", true},
		"holding":                 {0, 2, func(s *reconcile.Snapshot) { s.Hold = "new" }, "", false},
		"without a limit":         {0, 0, func(s *reconcile.Snapshot) { s.RC.InPlace = nil }, "", false},
		"without a rollout":       {0, 2, func(s *reconcile.Snapshot) { s.Rollout = "" }, "main.0 p m1", false},
		"the last one has failed": {1, 2, func(s *reconcile.Snapshot) { fail(s, 0) }, "", true},
		"the last one, limit is met": {
			2, 2, func(s *reconcile.Snapshot) { fail(s, 1); s.Pods[1].Switching = true }, "", true,
		},
		"a third manifest": {0, 1, func(s *reconcile.Snapshot) {
			s.Pods[0].Digest, s.Pods[0].Reality.Digest = "m7", "m7"
		}, "main.0 p m1", false},
		"static": {0, 2, func(s *reconcile.Snapshot) { s.RC.Strategy = rc.Static }, "main.0 p m1", false},
		"found":  {3, 2, func(s *reconcile.Snapshot) { s.Pods[2].AdoptedAtGeneration = 7 }, "main.1 former m0", false},
	} {
		s := inPlace(3, 3, c.updated, c.limit)
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		if got := strings.Join(upgrades(&plan), ", "); got != c.want || plan.Status.Is(rc.Blocked) != c.blocked {
			t.Errorf("%s: %q, want %q; %+v", name, got, c.want, plan.Status.Conditions)
		}
		for _, ch := range plan.Changes {
			if ch.Action == reconcile.Upgrade &&
				(!ch.Placement.Switching || ch.Intents[0].Intent.Digest != ch.Placement.Digest) {
				t.Errorf("%s: %+v", name, ch)
			}
		}
	}
}

// Each role has a manifest. Only pods of the role that changed are upgraded. New pods get the manifest and the count of
// their role. Later changes of counts upgrade nothing.
func TestOnlyTheChangedRoleIsUpgraded(t *testing.T) {
	t.Parallel()
	s := row(3, 3)
	groups(s, 2, "read", 3)
	s.Pods[2].Role, s.Pods[2].Identity.Index = "read", 0
	s.RC.MinAvailable = count(0)
	s.RC.GroupManifests = map[string]string{"read": "m2"}
	s.Manifests = map[string]*manifest.Manifest{"m2": {Version: 1, ID: "reader"}}
	plan := reconcile.Compute(s)
	if got := fmt.Sprint(upgrades(&plan)); got != "[read.0 reader m2]" {
		t.Error(got)
	}
	for _, id := range plan.Adds {
		ch := plan.Placer().On(id, "n9")
		if p := ch.Placement; p.Digest != "m2" || p.PodID != "reader" || p.Replicas != 3 ||
			ch.Intents[0].Intent.Replicas != 3 {
			t.Errorf("%+v", p)
		}
	}
	if got := plan.Changes[0].Placement.Replicas; len(plan.Adds) != 2 || got != 3 {
		t.Errorf("%v, %d replicas", plan.Adds, got)
	}
	s.RC.GroupManifests = map[string]string{"main": "m1"}
	groups(s, 2, "read", 1)
	if plan := reconcile.Compute(s); len(plan.Changes) > 0 || !plan.Status.Is(rc.Converged) {
		t.Errorf("%+v", plan)
	}
	s.RC.GroupManifests = map[string]string{"read": "m9"} // m9 cannot be read
	groups(s, 3, "read", 2)
	if plan := reconcile.Compute(s); len(plan.Changes) > 0 || len(plan.Adds) != 1 || plan.Adds[0].Role != "main" {
		t.Errorf("%+v", plan)
	}
}

func fail(s *reconcile.Snapshot, i int) {
	sick(s, i)
	s.Pods[i].Reality.State = pod.StateFailed
}

// A pod that has switched its manifest gives back what only the former version needed, in both directions.
func TestASwitchedPodGivesBackItsFormerShare(t *testing.T) {
	t.Parallel()
	s := inPlace(1, 1, 0, 0)
	s.Pods[0].Switching = true
	if plan := reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.FinishUpgrade {
		t.Errorf("%+v", plan.Changes)
	}
	s.Manifests = nil
	if plan := reconcile.Compute(s); len(plan.Changes) != 0 {
		t.Errorf("%+v", plan.Changes)
	}
}

// New replicas get the new manifest up to the limit, then the former one.
func TestNewReplicasKeepToTheLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		updated, limit int
		change         func(*reconcile.Snapshot)
		want           []string
	}{
		"all new":      {1, 9, nil, []string{"p m1", "p m1", "p m1"}},
		"some of each": {1, 2, nil, []string{"p m1", "former m0", "former m0"}},
		"none new":     {1, 1, nil, []string{"former m0", "former m0", "former m0"}},
		"no former": {
			1, 1, func(s *reconcile.Snapshot) { s.RC.InPlace.From = "" }, []string{"p m1", "p m1", "p m1"},
		},
		"former unread":    {1, 2, func(s *reconcile.Snapshot) { s.Manifests = nil }, []string{"p m1"}},
		"none can be read": {1, 1, func(s *reconcile.Snapshot) { s.Manifests = nil }, nil},
		"no limit": {
			1, 0, func(s *reconcile.Snapshot) { s.RC.InPlace = nil }, []string{"p m1", "p m1", "p m1"},
		},
	} {
		s := inPlace(1, 4, c.updated, c.limit)
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		var got []string
		for _, id := range plan.Adds {
			ch := plan.Placer().On(id, "n1")
			got = append(got, ch.Placement.PodID+" "+ch.Placement.Digest)
			if m := plan.Lots([]pod.Identity{id})[0].Manifest; m.ID != ch.Placement.PodID {
				t.Errorf("%s: its lot has the manifest of %s", name, m.ID)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		lots, n := plan.Lots(plan.Adds), 0
		for _, lot := range lots {
			n += len(lot.Pods)
		}
		if n != len(plan.Adds) {
			t.Errorf("%s: %v of %v", name, lots, plan.Adds)
		}
	}
}

// A pod of a lost machine, or on a drained node, is placed elsewhere. During a rollout or with a limit it keeps its
// manifest. Otherwise it gets the controller's. If the manifest that it would run cannot be read, the pod is not placed
// elsewhere.
func TestMovedPodsKeepTheirManifest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		want   string
	}{
		"a limit":              {func(s *reconcile.Snapshot) { s.Rollout = "" }, "former m0"},
		"a rollout":            {func(s *reconcile.Snapshot) { s.RC.InPlace = nil }, "former m0"},
		"neither":              {func(s *reconcile.Snapshot) { s.RC.InPlace, s.Rollout = nil, "" }, "p m1"},
		"its manifest is gone": {func(s *reconcile.Snapshot) { s.Manifests = nil }, ""},
		"the new one is gone":  {func(s *reconcile.Snapshot) { s.Manifest = nil }, "former m0"},
	} {
		for _, lost := range []bool{true, false} {
			s := inPlace(2, 2, 1, 1)
			if lost {
				long := s.Now.Add(-time.Hour)
				toLost(s, &s.Pods[1])
				s.Pods[1].LostSince = &long
			} else {
				s.RolloutIdle = true
				s.Nodes["n1"].Ops.Drain = &node.Drain{Since: s.Now}
			}
			c.change(s)
			plan := reconcile.Compute(s)
			got := ""
			for _, id := range plan.Adds {
				ch := plan.Placer().On(id, "n3")
				got += ch.Placement.PodID + " " + ch.Placement.Digest
			}
			if got != c.want {
				t.Errorf("%s, lost %t: %q, want %q: %+v", name, lost, got, c.want, plan.Status.Conditions)
			}
		}
	}
}

// OtherDigests names the manifests that a pass must read besides the controller's own.
func TestOtherDigestsNamesManifestsToRead(t *testing.T) {
	t.Parallel()
	s := inPlace(3, 3, 1, 1)
	s.Pods[2].Digest = "m7"
	s.RC.InPlace.From = "m9"
	if got := s.OtherDigests(9); !slices.Equal(got, []string{"m0", "m7", "m9"}) {
		t.Errorf("%v", got)
	}
	if got := s.OtherDigests(1); !slices.Equal(got, []string{"m9"}) {
		t.Errorf("%v", got)
	}
	if s.RC.InPlace = nil; !slices.Equal(s.OtherDigests(9), []string{"m0", "m7"}) {
		t.Errorf("with a rollout: %v", s.OtherDigests(9))
	}
	if s.Rollout = ""; s.OtherDigests(9) != nil {
		t.Errorf("with neither: %v", s.OtherDigests(9))
	}
}

// A controller whose upgrade in place is at its limit has converged. A limit without a rollout is reported. Regressed
// counts pods that were found with a manifest that no pod should have.
func TestAnUpgradeInPlaceReportsItsState(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		updated, limit  int
		change          func(*reconcile.Snapshot)
		converged, gone bool
		regressed       bool
	}{
		"at the limit": {1, 1, nil, true, false, false},
		"before it":    {0, 1, nil, false, false, false},
		"beyond it":    {2, 1, nil, false, false, false},
		"beyond it, no former": {
			2, 1, func(s *reconcile.Snapshot) { s.RC.InPlace.From = "" }, true, false, false,
		},
		"before it, no former": {
			0, 1, func(s *reconcile.Snapshot) { s.RC.InPlace.From = "" }, false, false, false,
		},
		"limit above all":          {3, 9, nil, true, false, false},
		"no rollout":               {1, 1, func(s *reconcile.Snapshot) { s.Rollout = "" }, true, true, false},
		"no rollout, limit is all": {3, 3, func(s *reconcile.Snapshot) { s.Rollout = "" }, true, false, false},
		"no rollout, one short":    {2, 2, func(s *reconcile.Snapshot) { s.Rollout = "" }, true, true, false},
		"no limit":                 {3, 0, func(s *reconcile.Snapshot) { s.RC.InPlace = nil }, true, false, false},
		"found with the former": {
			1, 1, func(s *reconcile.Snapshot) { s.Pods[2].AdoptedAtGeneration = 7 }, true, false, false,
		},
		"found with a third manifest": {1, 1, func(s *reconcile.Snapshot) { third(s, 2) }, true, false, true},
	} {
		s := inPlace(3, 3, c.updated, c.limit)
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		if st := &plan.Status; st.Is(rc.Converged) != c.converged || st.Is(rc.RolloutGone) != c.gone ||
			st.Is(rc.Regressed) != c.regressed {
			t.Errorf("%s: %+v", name, st.Conditions)
		}
	}
	s := inPlace(3, 3, 1, 1)
	s.Previous = &rc.Status{Conditions: []rc.Condition{{Type: rc.RolloutGone, True: true}}}
	s.RC.InPlace = nil
	if plan := reconcile.Compute(s); plan.Status.Is(rc.RolloutGone) {
		t.Errorf("%+v", plan.Status.Conditions)
	}
}

func third(s *reconcile.Snapshot, i int) {
	s.Pods[i].AdoptedAtGeneration, s.Pods[i].Digest, s.Pods[i].Reality.Digest = 7, "m7", "m7"
}

// oneOfTwo is a controller with four pods of a role that does not change, and four pods of a role that changes. updated
// is how many of the second role are upgraded.
func oneOfTwo(updated, limit int) *reconcile.Snapshot {
	s := inPlace(8, 4, 8, limit)
	s.RC.ReplicaGroups = append(s.RC.ReplicaGroups, rc.ReplicaGroup{Role: "read", Count: count(4)})
	s.RC.GroupManifests = map[string]string{"read": "r1"}
	s.RC.InPlace = &rc.InPlace{
		From: s.RC.ManifestDigest, FromGroups: map[string]string{"read": "r0"}, Roles: []string{"read"}, Limit: limit,
	}
	s.RC.Service = &rc.Service{Name: "web", Revision: 2}
	s.Manifests = map[string]*manifest.Manifest{"r0": {Version: 1, ID: "former"}, "r1": {Version: 1, ID: "p"}}
	for i := range 4 {
		p := &s.Pods[4+i]
		p.Role, p.Identity.Role, p.Identity.Index = "read", "read", i
		p.Digest = "r0"
		if i < updated {
			p.Digest = "r1"
		}
		r := *p.Reality
		r.Digest = p.Digest
		p.Reality = &r
	}
	return s
}

// The limit, and the status fields for rollouts, count only pods of the roles that change. Other pods have no limit,
// and prove nothing about the change.
func TestALimitCountsTheRolesThatChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		updated, limit int
		change         func(*reconcile.Snapshot)
		want           string
		status         string // updated, of which available, failing
		gone           string // the reason of RolloutGone
	}{
		"none yet": {0, 1, nil, "read.0 p r1", "0 0 0", ""},
		"limit 0":  {0, 0, nil, "", "0 0 0", ""},
		"enough":   {1, 1, nil, "", "1 1 0", ""},
		"more":     {1, 3, nil, "read.1 p r1", "1 1 0", ""},
		"too many": {3, 1, nil, "read.2 former r0", "3 3 0", ""},
		"all":      {4, 4, nil, "", "4 4 0", ""},
		"no rollout": {
			1, 1, func(s *reconcile.Snapshot) { s.Rollout = "" }, "", "1 1 0",
			"1 of 4 pods may run the new manifest of read, and no rollout is in charge any more",
		},
		"no rollout, all": {
			4, 4, func(s *reconcile.Snapshot) { s.Rollout = "" }, "", "4 4 0", "",
		},
		"one of the others runs something else": {
			1, 1, func(s *reconcile.Snapshot) { other(s, 0) }, "main.0 p m1", "1 1 0", "",
		},
		"on the way back, one of the others runs something else": {
			3, 1, func(s *reconcile.Snapshot) { other(s, 0); fails(s, 0) }, "main.0 p m1", "3 3 0", "",
		},
		"one of the others fails": {
			1, 1, func(s *reconcile.Snapshot) { fails(s, 0) }, "", "1 1 0", "",
		},
		"one of the others fails, more may go": {
			1, 2, func(s *reconcile.Snapshot) { fails(s, 0) }, "read.1 p r1", "1 1 0", "",
		},
		"one of the others fails, back": {
			3, 1, func(s *reconcile.Snapshot) { fails(s, 0) }, "read.2 former r0", "3 3 0", "",
		},
		"one of the others fails since it was upgraded": {
			1, 2, func(s *reconcile.Snapshot) { fails(s, 0); s.Pods[0].Switching = true }, "read.1 p r1", "1 1 0", "",
		},
		"one of the others has failed, and they change no more": {
			1, 2, func(s *reconcile.Snapshot) { fails(s, 0); other(s, 1) }, "read.1 p r1", "1 1 0", "",
		},
		"one of the others is being upgraded": {
			1, 2, func(s *reconcile.Snapshot) { comes(s, 0) }, "", "1 1 0", "",
		},
		"one of the others is being upgraded, back": {
			3, 1, func(s *reconcile.Snapshot) { comes(s, 0) }, "", "3 3 0", "",
		},
		"one that changed fails, more may go": {
			1, 2, func(s *reconcile.Snapshot) { fails(s, 0); fails(s, 4) }, "", "1 0 1", "",
		},
		"one that changed fails, and one of the others waits": {
			1, 1, func(s *reconcile.Snapshot) { fails(s, 4); other(s, 0) }, "", "1 0 1", "",
		},
		"one of the others has failed, and another waits": {
			1, 1, func(s *reconcile.Snapshot) { fails(s, 0); other(s, 1) }, "", "1 1 0", "",
		},
		"one that changed fails": {
			1, 1, func(s *reconcile.Snapshot) { fails(s, 4) }, "", "1 0 1", "",
		},
		"no roles are named: all count": {
			0, 4, func(s *reconcile.Snapshot) { s.RC.InPlace.Roles = nil }, "", "4 4 0", "",
		},
	} {
		s := oneOfTwo(c.updated, c.limit)
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		if got := strings.Join(upgrades(&plan), ", "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		st := &plan.Status
		if got := fmt.Sprintf("%d %d %d", st.Updated, st.UpdatedAvailable, len(st.Failing)); got != c.status {
			t.Errorf("%s: the status has %s, want %s", name, got, c.status)
		}
		why := ""
		for _, cond := range st.Conditions {
			if cond.Type == rc.RolloutGone && cond.True {
				why = cond.Reason
			}
		}
		if why != c.gone {
			t.Errorf("%s: %q, want %q", name, why, c.gone)
		}
	}
}

func other(s *reconcile.Snapshot, i int) { s.Pods[i].Digest, s.Pods[i].Reality.Digest = "m7", "m7" }

func fails(s *reconcile.Snapshot, i int) {
	s.Pods[i].Reality.State, s.Pods[i].Reality.Available = pod.StateFailed, false
}

// comes makes the state of a pod that was upgraded a moment ago, and is not available yet.
func comes(s *reconcile.Snapshot, i int) {
	sick(s, i)
	s.Pods[i].Switching, s.Pods[i].ChangedAt = true, s.Now
}

// If the upgrade stops because of a failed pod, the status reports this. If the failed pod delays no other pod, nothing
// is blocked.
func TestAFailedPodBlocksOnlyIfItDelaysOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*reconcile.Snapshot)
		want   string
	}{
		"one of the others, more may go": {func(s *reconcile.Snapshot) { fails(s, 0) }, ""},
		"one that changed, more may go":  {func(s *reconcile.Snapshot) { fails(s, 0); fails(s, 4) }, "read.0"},
		"one of the others, another waits": {
			func(s *reconcile.Snapshot) { s.RC.InPlace.Limit = 1; fails(s, 0); other(s, 1) }, "main.0",
		},
		"one of the others was upgraded": {
			func(s *reconcile.Snapshot) { s.RC.InPlace.Limit = 1; fails(s, 0); s.Pods[0].Switching = true }, "main.0",
		},
		"both, and one of the others waits": {
			func(s *reconcile.Snapshot) { s.RC.InPlace.Limit = 1; fails(s, 0); fails(s, 4); other(s, 1) }, "read.0",
		},
	} {
		s := oneOfTwo(1, 2)
		c.change(s)
		plan := reconcile.Compute(s)
		why := ""
		for _, cond := range plan.Status.Conditions {
			if cond.Type == rc.Blocked && cond.True {
				why = cond.Reason
			}
		}
		if (why == "") != (c.want == "") || !strings.HasPrefix(why, c.want) {
			t.Errorf("%s: blocked by %q, want %q", name, why, c.want)
		}
	}
}

// New pods of a role that does not change get its manifest with any limit, and the limit does not count them. Beyond
// the limit, new pods of a role that changes get the former manifest. Then the controller has converged.
func TestNewPodsGetTheManifestOfTheirRole(t *testing.T) {
	t.Parallel()
	s := oneOfTwo(1, 2)
	s.RC.ReplicaGroups[0].Count, s.RC.ReplicaGroups[1].Count, s.RC.MaxSurge = count(6), count(7), count(9)
	plan := reconcile.Compute(s)
	var digests []string
	for _, id := range plan.Adds {
		digests = append(digests, fmt.Sprintf("%s.%d %s", id.Role, id.Index, plan.DigestOf(id)))
	}
	if got, want := strings.Join(digests, ", "), "main.4 m1, main.5 m1, read.4 r1, read.5 r0, read.6 r0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for limit, converged := range map[int]bool{1: true, 2: false} {
		if plan := reconcile.Compute(oneOfTwo(1, limit)); plan.Status.Is(rc.Converged) != converged {
			t.Errorf("limit %d: %+v", limit, plan.Status.Conditions)
		}
	}
	s = oneOfTwo(1, 1)
	other(s, 0)
	s.Pods[0].AdoptedAtGeneration = s.RC.Generation // kept as adopted
	if plan := reconcile.Compute(s); plan.Status.Is(rc.Converged) || len(upgrades(&plan)) > 0 {
		t.Errorf("%+v", plan.Status.Conditions)
	}
}

// The status has the facts on which rollouts base their decisions.
func TestAStatusHasWhatRolloutsDecideBy(t *testing.T) {
	t.Parallel()
	s := row(8, 8)
	besides(s, 1, 0, 20)
	s.Nodes["n4"].Alive = false // without a preparer
	s.Nodes["n5"].Alive, s.Nodes["n5"].MachineLost = false, true
	stopAt(&s.Pods[5], s)
	s.Pods[0].Placement.Ghosts = []pod.Ghost{{Node: "n3", Revision: 4}, {Node: "n5", Revision: 4}}
	s.Pods[1].Digest = "m0"
	s.Pods[2].Reality.Standby = true
	fail(s, 6)
	fail(s, 7)
	s.Pods[7].Reality.Hopeless, s.Pods[7].Reality.Message = true, "exits at once"
	plan := reconcile.Compute(s)
	st := plan.Status
	if st.Epoch != "world" || st.Ghosts != 1 || st.StoppingLost != 1 || st.UnmanagedAvailable != 1 || st.Updated != 6 ||
		st.UpdatedAvailable != 3 || st.StandingBy != 1 {
		t.Errorf("%+v", st)
	}
	if len(st.Failing) != 2 || st.Failing[0].Pod != "main.7" || !st.Failing[0].Hopeless ||
		!strings.Contains(st.Failing[0].Reason, "exits at once") ||
		st.Failing[1].Pod != "main.6" || st.Failing[1].Hopeless || st.Failing[1].Node != "n6" {
		t.Errorf("%+v", st.Failing)
	}
	unhealthy := row(8, 8) // of another version, of an earlier revision, and of the present one
	besides(unhealthy, 1, 0, 20)
	for _, i := range []int{2, 3, 4} {
		r := unhealthy.Pods[i].Reality
		r.State, r.Available, r.Message = pod.StateUnhealthy, false, "503 db down"
	}
	unhealthy.Pods[2].Reality.Digest = "m0"
	unhealthy.Pods[3].Reality.Revision = unhealthy.Pods[3].Revision - 1
	plan = reconcile.Compute(unhealthy)
	want := []rc.PodFailure{{Pod: "main.4", Node: "n4", Reason: "unhealthy: 503 db down"}}
	if !reflect.DeepEqual(plan.Status.Failing, want) {
		t.Errorf("%+v, want %+v", plan.Status.Failing, want)
	}
	looping := row(4, 4)
	besides(looping, 1, 0, 20)
	for i, r := range map[int]pod.Reality{
		0: {State: pod.StateCrashLooping, Message: "it exits", Restarts: 3, LogTail: "no such table"},
		1: {
			State: pod.StateRunning, Restarts: 1, LastExit: &pod.Exit{Launchable: "server", Code: 3},
			LogTail: strings.Repeat("é", pod.MaxLogTail/2),
		},
		2: {State: pod.StateFailed, Message: "refused", Digest: "m0", LogTail: "of another version"},
		3: {
			State: pod.StateUnhealthy, Message: "503", LastExit: &pod.Exit{Launchable: "server", Code: 3},
			LogTail: strings.Repeat("x", 250),
		},
	} {
		at := looping.Pods[i].Reality
		at.State, at.Available, at.Message = r.State, false, r.Message
		at.Restarts, at.LastExit, at.LogTail = r.Restarts, r.LastExit, r.LogTail
		if r.Digest != "" {
			at.Digest = r.Digest
		}
	}
	for rollout, ends := range map[string][3]string{
		"": {},
		"web/1": {
			"; its log ends: no such table", "; its log ends: ..." + strings.Repeat("é", 125),
			"; its log ends: " + strings.Repeat("x", 250),
		},
	} {
		looping.Rollout = rollout
		plan = reconcile.Compute(looping)
		want = []rc.PodFailure{
			{Pod: "main.0", Node: "n0", Reason: "crash-looping: it exits" + ends[0]},
			{Pod: "main.1", Node: "n1", Reason: "running; server ended with exit status 3 before" + ends[1]},
			{Pod: "main.2", Node: "n2", Reason: "failed: refused"},
			{Pod: "main.3", Node: "n3", Reason: "unhealthy: 503" + ends[2]},
		}
		if !reflect.DeepEqual(plan.Status.Failing, want) {
			t.Errorf("rollout %q: %+v, want %+v", rollout, plan.Status.Failing, want)
		}
	}
	s = row(9, 9)
	besides(s, 1, 0, 20)
	for i := range s.Pods {
		fail(s, i)
	}
	s.Pods[0].Digest, s.Nodes["n1"].Alive = "m0", false
	if plan = reconcile.Compute(s); len(plan.Status.Failing) != rc.MaxFailing ||
		plan.Status.Failing[0].Pod != "main.2" {
		t.Errorf("%+v", plan.Status.Failing)
	}
	for name, change := range map[string]func(*reconcile.Snapshot){
		"holding":      func(s *reconcile.Snapshot) { s.Hold = "new" },
		"adopting":     func(s *reconcile.Snapshot) { s.Orphans = []reconcile.Orphan{orphan("n2", 2, 6)} },
		"of a service": func(s *reconcile.Snapshot) { s.RC.Service = nil },
	} {
		s := row(2, 3)
		besides(s, 1, 0, 20)
		change(s)
		if plan := reconcile.Compute(s); plan.Status.Epoch != "" {
			t.Errorf("%s: %+v", name, plan.Status)
		}
	}
}

// Pods begin or cease to have their service's name without another change. As many cease to have it as the minimum
// allows. A pod that is kept as adopted, or has another change, does neither.
func TestPodsSwitchNamesWithinTheMinimum(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leave  bool
		beside int
		change func(*reconcile.Snapshot)
		want   int
		waits  bool
	}{
		"all take it":     {false, 0, nil, 3, false},
		"one leaves":      {true, 0, nil, 1, true},
		"two leave":       {true, 1, nil, 2, true},
		"all leave":       {true, 2, nil, 3, false},
		"one is not well": {true, 0, func(s *reconcile.Snapshot) { sick(s, 1) }, 1, true},
		"holding":         {false, 0, func(s *reconcile.Snapshot) { s.Hold = "new" }, 0, false},
		"found":           {false, 0, func(s *reconcile.Snapshot) { s.Pods[0].AdoptedAtGeneration = 7 }, 2, false},
		"one stops":       {false, 0, func(s *reconcile.Snapshot) { stopAt(&s.Pods[0], s) }, 2, false},
		"as it is": {
			false, 0, func(s *reconcile.Snapshot) { s.Pods[0].Placement.Standby = false }, 2, false,
		},
		"disabled":            {false, 0, func(s *reconcile.Snapshot) { s.RC.Disabled = true }, 0, false},
		"no longer a service": {false, 0, func(s *reconcile.Snapshot) { s.RC.Service = nil }, 3, false},
	} {
		s := row(3, 3)
		besides(s, c.beside, 2, 20)
		s.RC.MinAvailable = count(2)
		s.RC.Service.Standby = c.leave
		for i := range s.Pods {
			s.Pods[i].Placement.Standby, s.Pods[i].Reality.Standby = !c.leave, !c.leave
		}
		if c.change != nil {
			c.change(s)
		}
		plan := reconcile.Compute(s)
		n := 0
		for _, ch := range plan.Changes {
			if ch.Action != reconcile.Switch {
				continue
			}
			n++
			in := ch.Intents[0].Intent
			if ch.Placement.Standby != c.leave || in.Standby != c.leave || in.Revision <= 5 || in.Digest != "m1" ||
				in.State != pod.Running || !ch.NeedsSchema ||
				ch.TakesAvailable != (c.leave && s.Pods[ch.Identity.Index].Reality.Available) || len(ch.Reserve) > 0 {
				t.Errorf("%s: %+v", name, ch)
			}
		}
		if n != c.want || plan.Status.Is(rc.WaitsForService) != c.waits {
			t.Errorf("%s: %d switch, want %d: %+v", name, n, c.want, plan.Status.Conditions)
		}
	}
}

// A new pod of a standby controller is standby from the start, and so is a pod that is adopted. An intent that differs
// is written again.
func TestPodsOfAStandbyControllerAreStandby(t *testing.T) {
	t.Parallel()
	s := row(1, 2)
	besides(s, 0, 0, 20)
	s.RC.Service.Standby = true
	s.Pods[0].Placement.Standby, s.Pods[0].Reality.Standby = true, true
	plan := reconcile.Compute(s)
	if ch := plan.Placer().On(plan.Adds[0], "n1"); !ch.Placement.Standby || !ch.Intents[0].Intent.Standby {
		t.Errorf("%+v", ch)
	}
	s.Orphans = []reconcile.Orphan{orphan("n2", 1, 6)}
	if plan = reconcile.Compute(s); len(plan.Changes) != 1 || !plan.Changes[0].Placement.Standby {
		t.Errorf("%+v", plan.Changes)
	}
	s.Orphans = nil
	intent := s.Pods[0].Placement.Intent()
	intent.Standby = false
	s.Pods[0].Intents = map[string]*pod.Intent{"n0": &intent}
	if plan = reconcile.Compute(s); len(plan.Changes) != 1 || plan.Changes[0].Action != reconcile.Repair {
		t.Errorf("%+v", plan.Changes)
	}
}

// A pod reserves the share for its present manifest, or for the manifest that it gets next. The default lot reserves
// the share for the controller's manifest.
func TestAnUpgradeInPlaceReservesForItsManifest(t *testing.T) {
	t.Parallel()
	s := inPlace(3, 3, 1, 1)
	s.Manifests["m0"].Launchables = []manifest.Launchable{{Resources: manifest.Resources{CPU: 700}}}
	plan := reconcile.Compute(s)
	lots := plan.Lots([]pod.Identity{s.Pods[2].Identity, s.Pods[0].Identity})
	former, present := lots[0].Rule.Ask, lots[1].Rule.Ask
	if former.CPU != 700 || present.CPU == 700 {
		t.Errorf("former %+v, present %+v", former, present)
	}
}
