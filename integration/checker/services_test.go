package checker

import (
	"maps"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// newService is a world whose c and d can become revisions of one service, and p the controller of the second's
// pre_deploy.
func newService(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, map[string]string{
		"c": rc.RevisionID(unit, 1), "d": rc.RevisionID(unit, 2),
		"p": rc.PreDeployID(unit, 2),
	})
}

// beside makes c and d revisions of one service. By default a rollout is in charge of c, and d's pod on n2 is
// available.
func (w *world) beside(ofC fields, of, pod, reality fields) {
	service := fields{"name": "web"}
	update(service, of)
	record := with(controllerOf(1, 1), fields{"id": "d", "name": "web-r2", "service": maps.Clone(service)})
	if other, given := ofC[asOther]; given {
		record["service"] = other
	}
	w.txn(kv("set", "rcs/d", record))
	p := placed("n2", running, 30)
	p["rc_id"] = "d"
	update(p, pod)
	w.txn(kv("check-session", lockKey, nil).by("s-f1"), kv("check-index", lockKey, nil).at(w.lock),
		kv("set", "pods/d/main.0", p))
	r := did("ready", 30, true)
	r["rc_id"] = "d"
	update(r, reality)
	w.txn(kv("set", "reality/n2/d/main.0", r))
	more, rollout := fields{"service": service}, any(fields{
		"id": "r1", "service": "web",
		"revisions": []fields{{"rc": "c"}},
	})
	update(more, ofC)
	if other, given := more[asRollout]; given {
		rollout = other
	}
	delete(more, asRollout)
	delete(more, asOther)
	w.rc = w.txn(kv("set", rcKey, with(controllerOf(2, 0), more)))
	if rollout != nil {
		w.txn(kv("set", "rollouts/c", rollout))
	}
}

// asOther is a key in the fields of c. Its value is the service of d, in place of the default.
const asOther = "other"

// asRollout is a key in the fields of c. Its value is the rollout, in place of the default; nil means none.
const asRollout = "rollout"

func update(f, more fields) { maps.Copy(f, more) }

func with(f, more fields) fields {
	update(f, more)
	return f
}

func (w *world) loses() {
	w.command(typeSession, fields{"Op": "destroy", "Session": fields{"ID": "s-n2"}})
	w.command(typeRegister, fields{"Node": "n2", "Check": fields{"CheckID": "serfHealth", "Status": critical}})
}

// returns makes n2's machine work again, without a preparer.
func (w *world) returns() {
	w.command(typeRegister, fields{"Node": "n2", "Check": fields{"CheckID": "serfHealth", "Status": "passing"}})
	w.txn() // an entry of the log, so that the checker sees the machine back
}

func (w *world) rewritesOther(value any) { w.txn(kv("set", "rcs/d", value)) }

func (w *world) removes() { w.txn(kv("delete", "rcs/d", nil)) }

func (w *world) runsBefore() { w.txn(kv("set", "rcs/p", with(controllerOf(1, 1), fields{"id": "p"}))) }

func (w *world) rewrites(more fields) {
	p := with(placed("n1", running, 20), more)
	w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, p).at(w.pod))...)
}

// A service's minimum applies to all of its revisions together.
func TestMinimumOfAService(t *testing.T) {
	t.Parallel()
	const rule, own = "P6 service below its minimum", "P6 below the minimum"
	stops := func(w *world) { w.stop(20) }
	stopsBoth := func(w *world) {
		other := with(placed("n2", stopped, 40), fields{"rc_id": "d"})
		w.txn(w.fenced(kv("check-index", "breaker", nil).at(w.breaker),
			kv("cas", podKey, placed("n1", stopped, 20)).at(w.pod),
			kv("set", "pods/d/main.0", other))...)
	}
	upgrades := func(w *world) { w.rewrites(fields{"digest": "d2"}) }
	one := fields{"replica_groups": []fields{{"role": "main", "count": 1}}, "min_available": 1}
	released := fields{asRollout: nil}
	ofOther := fields{asRollout: fields{"id": "r1", "service": "web", "revisions": []fields{{"rc": "d"}}}}
	before := fields{asRollout: fields{"id": "r1", "service": "web", "pre_deploy": fields{"rc": "c"}}}
	strict := with(controllerOf(1, 1), fields{
		"id": "d", "deleted_at": "2026-01-01T00:00:00Z",
		"service": fields{"name": "web", "min": 2},
	})
	deleted := with(controllerOf(1, 1), fields{"id": "d", "deleted_at": "2026-01-01T00:00:00Z"})
	for name, c := range map[string]struct {
		ofC, of, pod, reality fields
		before                func(w *world)
		late                  time.Duration
		act                   func(w *world)
		rule                  string
	}{
		"another one is left":     {of: fields{"min": 1}, act: stops},
		"it is not available":     {of: fields{"min": 1}, reality: fields{"available": false}, act: stops, rule: rule},
		"two are needed":          {of: fields{"min": 2}, act: stops, rule: rule},
		"none is needed":          {of: fields{}, reality: fields{"available": false}, act: stops},
		"it is to stand by":       {of: fields{"min": 1}, pod: fields{"standby": true}, act: stops, rule: rule},
		"it stands by":            {of: fields{"min": 1}, reality: fields{"standby": true}, act: stops, rule: rule},
		"it has another manifest": {of: fields{"min": 1}, reality: fields{"digest": "d0"}, act: stops, rule: rule},
		"it stops":                {of: fields{"min": 1}, pod: fields{"run_state": stopped}, act: stops, rule: rule},
		"its machine was lost a moment ago": {
			of: fields{"min": 1}, before: (*world).loses,
			late: heardLate - time.Second, act: stops,
		},
		"its machine is lost": {
			of: fields{"min": 1}, before: (*world).loses,
			late: heardLate + time.Second, act: stops, rule: rule,
		},
		"upgraded in place": {ofC: one, of: fields{"min": 2}, act: upgrades, rule: rule},
		"out of its name": {
			ofC: one, of: fields{"min": 2},
			act: func(w *world) { w.rewrites(fields{"standby": true}) }, rule: rule,
		},
		"into its name": {ofC: one, of: fields{"min": 2}, act: func(w *world) {
			w.rewrites(fields{})
		}},
		"one is asked for": {ofC: released, of: fields{"min": 2}, act: stops},
		"one is asked for that stands by": {
			ofC: fields{asRollout: nil, asOther: fields{"name": "web", "min": 2, "standby": true}},
			of:  fields{"min": 2},
			pod: fields{"standby": true}, reality: fields{"standby": true}, act: stops,
		},
		"one is asked for, one is rolled": {ofC: ofOther, of: fields{"min": 2}, act: stops},
		"one is asked for, rolled unread": {ofC: fields{asRollout: "x"}, of: fields{"min": 2}, act: stops, rule: rule},
		"one is asked for, runs before":   {ofC: before, of: fields{"min": 2}, act: stops, rule: rule},
		"two are asked for": {
			ofC: with(maps.Clone(one), released),
			of:  fields{"min": 2}, act: stops, rule: rule,
		},
		"none is asked for": {
			ofC: released, of: fields{"min": 2}, reality: fields{"available": false},
			before: func(w *world) { w.rewritesOther(deleted) }, act: stops,
		},
		"both go at once":                 {of: fields{"min": 1}, act: stopsBoth, rule: rule},
		"both go at once, none is needed": {of: fields{}, act: stopsBoth},
		"what is asked for is spoilt": {
			ofC: released, of: fields{"min": 2},
			before: func(w *world) { w.rewritesOther(HostileMark) }, act: stops, rule: rule,
		},
		"nobody knows what is asked for": {
			ofC: released, of: fields{"min": 2},
			before: func(w *world) { w.rewritesOther("x") }, act: stops, rule: rule,
		},
		"alone": {
			ofC: one, of: fields{"min": 0}, before: (*world).removes, act: upgrades,
			rule: own,
		},
		"beside one that runs before": {
			ofC: one, of: fields{"min": 0},
			before: func(w *world) { w.removes(); w.runsBefore() }, act: upgrades, rule: own,
		},
		"the other one is stricter": {
			ofC: fields{asOther: fields{"name": "web", "min": 2}}, of: fields{"min": 1},
			act: stops, rule: rule,
		},
		"the other one is laxer": {
			ofC: fields{asOther: fields{"name": "web", "min": 1}}, of: fields{"min": 2},
			act: stops, rule: rule,
		},
		"the stricter one is deleted": {
			of: fields{"min": 1}, before: func(w *world) { w.rewritesOther(strict) },
			act: stops,
		},
		"the other one cannot be read": {
			of: fields{"min": 1}, before: func(w *world) { w.rewritesOther("x") },
			act: stops,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newService(t)
			w.beside(c.ofC, c.of, c.pod, c.reality)
			if c.before != nil {
				c.before(w)
			}
			w.late += c.late
			c.act(w)
			r := w.verdict()
			found := r.Count()
			for _, one := range []string{rule, own} {
				if (found[one] > 0) != (c.rule == one) {
					t.Errorf("found %v, expected %q", found, c.rule)
				}
			}
			if name == "another one is left" && r.Checked["P6 minimum of a service"] == 0 {
				t.Errorf("it is not counted: %v", r.Checked)
			}
		})
	}
}

// A service's bound applies to all of its revisions together. The added pod is the third.
func TestBoundOfAService(t *testing.T) {
	t.Parallel()
	const rule, own = "P6 service above its bound", "P6 above the surge"
	two := fields{"replica_groups": []fields{{"role": "main", "count": 2}}}
	adds := func(w *world) { w.second("n1", kv("check-index", "schema", nil).at(w.schema)) }
	lostOnce := func(w *world) { w.loses(); w.returns() }
	moves := func(ghost fields) func(w *world) {
		return func(w *world) {
			p := with(placed("n2", running, 20), fields{"ghosts": []fields{ghost}})
			w.txn(w.fenced(kv("check-index", "schema", nil).at(w.schema), kv("cas", podKey, p).at(w.pod))...)
		}
	}
	for name, c := range map[string]struct {
		ofC, of, pod, reality fields
		before                func(w *world)
		late                  time.Duration
		act                   func(w *world)
		rule                  string
	}{
		"three may be": {ofC: two, of: fields{"max": 3}, act: adds},
		"two may be":   {ofC: two, of: fields{"max": 2}, act: adds, rule: rule},
		"one of them is asked to stop": {
			ofC: two, of: fields{"max": 2},
			pod: fields{"run_state": stopped}, act: adds, rule: rule,
		},
		"one of them has stopped": {
			ofC: two, of: fields{"max": 2}, pod: fields{"run_state": stopped},
			reality: fields{"state": stopped}, act: adds,
		},
		"one of them leaves a copy behind": {
			ofC: two, of: fields{"max": 3},
			pod: fields{"ghosts": []fields{{"node": "n1", "revision": 40}}}, act: adds, rule: rule,
		},
		"one of them is lost": {ofC: two, of: fields{"max": 2}, before: (*world).loses, act: adds},
		"it was lost a moment ago": {
			ofC: two, of: fields{"max": 2}, before: lostOnce,
			late: heardLate - time.Second, act: adds,
		},
		"it was lost once": {
			ofC: two, of: fields{"max": 2}, before: lostOnce,
			late: heardLate + time.Second, act: adds, rule: rule,
		},
		"three are asked for": {
			ofC: with(maps.Clone(two), fields{asRollout: nil, "max_surge": 0}),
			of:  fields{"max": 2}, act: adds,
		},
		"two are asked for, and one more": {
			ofC: fields{asRollout: nil, "max_surge": 2}, of: fields{"max": 2},
			act: adds,
		},
		"two are asked for": {
			ofC: fields{asRollout: nil, "max_surge": 1}, of: fields{"max": 2}, act: adds,
			rule: rule,
		},
		"no bound":              {ofC: two, of: fields{}, act: adds},
		"no bound but its own":  {of: fields{}, act: adds, rule: own},
		"its own does not hold": {of: fields{"max": 3}, act: adds},
		"alone":                 {of: fields{"max": 2}, before: (*world).removes, act: adds, rule: own},
		"beside one that runs before": {
			of: fields{"max": 2}, before: func(w *world) { w.removes(); w.runsBefore() },
			act: adds, rule: own,
		},
		"the other one is stricter": {
			ofC: with(maps.Clone(two), fields{asOther: fields{"name": "web", "max": 2}}),
			of:  fields{"max": 3}, act: adds, rule: rule,
		},
		"the other one is laxer": {
			ofC: with(maps.Clone(two), fields{asOther: fields{"name": "web", "max": 3}}),
			of:  fields{"max": 2}, act: adds, rule: rule,
		},
		"the other one has no bound": {
			ofC: with(maps.Clone(two), fields{asOther: fields{"name": "web"}}),
			of:  fields{"max": 2}, act: adds, rule: rule,
		},
		"it is replaced, no preparer": {
			ofC: two, of: fields{"max": 1}, before: (*world).dies,
			act: moves(fields{"node": "n1", "lost": true}),
		},
		"it moves, its preparer lives": {ofC: two, of: fields{"max": 1}, act: moves(fields{"node": "n1"}), rule: rule},
		"what is found": {ofC: two, of: fields{"max": 2}, act: func(w *world) {
			w.rewrites(fields{"adopted_at_generation": 2})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newService(t)
			w.beside(c.ofC, c.of, c.pod, c.reality)
			if c.before != nil {
				c.before(w)
			}
			w.late += c.late
			c.act(w)
			found := w.verdict().Count()
			for _, one := range []string{rule, own} {
				if (found[one] > 0) != (c.rule == one) {
					t.Errorf("found %v, expected %q", found, c.rule)
				}
			}
		})
	}
}

// Pods beyond the limit of an upgrade in place get the manifest from before the upgrade.
func TestPlacedBeyondTheLimitInPlace(t *testing.T) {
	t.Parallel()
	const rule = "P2 superseded manifest"
	for digest, want := range map[string]bool{"d1": false, "d0": false, "d9": true} {
		w := newWorld(t)
		w.change(2, 2, fields{"in_place": fields{"from": "d0", "limit": 1}})
		p := with(placed("n2", running, 30), fields{"index": 1, "digest": digest})
		w.txn(w.fenced(kv("cas", "pods/c/main.1", p))...)
		if found := w.verdict().Count(); (found[rule] > 0) != want {
			t.Errorf("placed with %s: found %v", digest, found)
		}
	}
}

// A copy that is found running with a manifest that no role has gets a placement that stops it.
func TestAFoundCopyIsStoppedWithItsOwnManifest(t *testing.T) {
	t.Parallel()
	const rule = "P2 superseded manifest"
	for state, want := range map[string]bool{running: true, "stopped": false} {
		w := newWorld(t)
		p := with(placed("n2", state, 30), fields{"index": 1, "digest": "d9"})
		w.txn(w.fenced(kv("cas", "pods/c/main.1", p))...)
		if found := w.verdict().Count(); (found[rule] > 0) != want {
			t.Errorf("placed as %s: found %v", state, found)
		}
	}
}

// Each role has a manifest, and had one before an upgrade in place.
func TestPlacedWithAnotherRolesManifest(t *testing.T) {
	t.Parallel()
	const rule = "P2 superseded manifest"
	for digest, want := range map[string]bool{"g1": false, "g0": false, "d1": true, "d0": true} {
		w := newWorld(t)
		w.change(2, 2, fields{
			"group_manifests": fields{"main": "g1"},
			"in_place":        fields{"from": "d0", "from_groups": fields{"main": "g0"}, "limit": 1},
		})
		p := with(placed("n2", running, 30), fields{"index": 1, "digest": digest})
		w.txn(w.fenced(kv("cas", "pods/c/main.1", p))...)
		if found := w.verdict().Count(); (found[rule] > 0) != want {
			t.Errorf("placed with %s: found %v", digest, found)
		}
	}
}
