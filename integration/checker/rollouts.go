package checker

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

type rolloutRecord struct {
	ID        string `json:"id"`
	Service   string `json:"service"`
	Revisions []struct {
		RC string `json:"rc"`
	} `json:"revisions"`
	PreDeploy *struct {
		RC string `json:"rc"`
	} `json:"pre_deploy"`
}

func (r *rolloutRecord) names() []string {
	if r == nil {
		return nil
	}
	var ids []string
	for _, of := range r.Revisions {
		ids = append(ids, of.RC)
	}
	if r.PreDeploy != nil {
		ids = append(ids, r.PreDeploy.RC)
	}
	return ids
}

type deployedRecord struct {
	Unit string `json:"id"`
}

const keyRollouts = prefix + "rollouts/"

func rolloutOf(rcID string) string { return keyRollouts + rc.UnitOf(rcID) }

// rolledUnit returns the unit of the key of a rollout or of its trouble.
func rolledUnit(key string) (unit string, ok bool) {
	below, ours := strings.CutPrefix(key, keyRollouts)
	unit, _, _ = strings.Cut(below, "/")
	return unit, ours && unit != ""
}

// rollouts judges who changes rollouts and the controllers in their charge: the unit's owner under its fence, or an
// operator, who begins another rollout or makes a request.
func (j *judgement) rollouts(w *Write) {
	for unit := range w.stepped() {
		j.steps(w, unit)
	}
	for i := range w.Changes {
		c := &w.Changes[i]
		if unit, is := rolledUnit(c.Key); is && c.Key == keyRollouts+unit {
			j.ofOneUnit(w, c, unit)
		}
		if before := c.Before.controller(); before != nil {
			j.steered(w, c, before)
		}
	}
}

func (w *Write) stepped() map[string]bool {
	units := map[string]bool{}
	for i := range w.Changes {
		c := &w.Changes[i]
		if unit, is := rolledUnit(c.Key); is && !(c.Key == keyRollouts+unit && w.asks(c, unit)) {
			units[unit] = true
		}
	}
	return units
}

// asks reports whether an operator changed a rollout's record by a request or a deployment. The record's write must be
// a cas.
func (w *Write) asks(c *Change, unit string) bool {
	before, after := c.Before.rollout(), c.After.rollout()
	if after == nil || !w.has(c.Key, "cas") {
		return false
	}
	return w.deploys(unit) || before != nil && reflect.DeepEqual(withoutRequest(c.Before), withoutRequest(c.After))
}

// deploys reports whether the transaction writes a service's document on condition that it did not change, as
// operators' deployments do.
func (w *Write) deploys(unit string) bool {
	return slices.ContainsFunc(w.Ops, func(o Op) bool {
		key := o.DirEnt.Key
		if group(key) != "deployments" || !strings.HasSuffix(key, "/spec") || o.Verb != "cas" {
			return false
		}
		document := w.after(key).deployed()
		return document != nil && document.Unit == unit
	})
}

func withoutRequest(k *Key) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	if json.Unmarshal(k.Value, &all) != nil {
		return nil
	}
	delete(all, "request")
	return all
}

func (w *Write) fences(unit string) bool {
	lock := lockOf(unit)
	return w.has(lock, "check-session") && w.has(lock, "check-index")
}

// steps judges who made a step of a rollout, under which lock, and that it was decided from the present versions of all
// controllers of the unit.
func (j *judgement) steps(w *Write, unit string) {
	j.looked(ruleStep)
	farm, _ := w.holderOf(lockOf(unit))
	if farm == "" {
		j.violated("P1", ruleRolloutNotLocked, w.Index,
			"the rollout of unit %s was changed while no farm held its lock",
			unit)
		return
	}
	if !w.fences(unit) {
		j.violated("P1", "rollout without a fence", w.Index,
			"the rollout of unit %s was changed by a transaction that does not check its lock, which %s held", unit,
			farm)
	}
	for i := range w.Changes {
		if a := w.Changes[i].After.audit(); a != nil && a.Who != farm {
			j.violated("P1", ruleStepOwner, w.Index, "%s changed the rollout of unit %s, whose lock was held by %s",
				a.Who,
				unit, farm)
		}
	}
	for _, id := range w.controllersBefore(unit) {
		if !w.has(prefix+"rcs/"+id, "check-index", "cas", "delete-cas") {
			j.violated("P2", "rollout without a controller's version", w.Index,
				"the rollout of unit %s was changed by a transaction that does not name the version of controller %s",
				unit, id)
		}
	}
}

// controllersBefore includes controllers whose record cannot be read.
func (w *Write) controllersBefore(unit string) []string {
	var ids []string
	add := func(key string) {
		if id, is := strings.CutPrefix(key, prefix+"rcs/"); is && rc.UnitOf(id) == unit && !slices.Contains(ids, id) &&
			w.before(key) != nil {
			ids = append(ids, id)
		}
	}
	for key := range w.state.groups["rcs"] {
		add(key)
	}
	for i := range w.Changes { // a controller may be gone now
		add(w.Changes[i].Key)
	}
	slices.Sort(ids)
	return ids
}

const (
	ruleRolloutNotLocked = "rollout changed while no farm held its lock"
	ruleStepOwner        = "rollout changed by another than its owner"
)

// ofOneUnit: a rollout is in charge of its own unit only, because no other lock keeps two owners apart.
func (j *judgement) ofOneUnit(w *Write, c *Change, unit string) {
	for _, id := range c.After.rollout().names() {
		if rc.UnitOf(id) != unit {
			j.violated("P1", "rollout of another unit", w.Index, "the rollout of unit %s names controller %s", unit, id)
		}
	}
}

// inCharge: an unreadable rollout counts as in charge.
func (w *Write) inCharge(rcID string) bool {
	k := w.before(rolloutOf(rcID))
	if k == nil {
		return false
	}
	r := k.rollout()
	return r == nil || slices.Contains(r.names(), rcID)
}

// steered judges a change of a controller in a rollout's charge: it must be part of a step or a deployment, or remove
// the record of a deleted controller.
func (j *judgement) steered(w *Write, c *Change, before *controller) {
	if !w.inCharge(before.ID) {
		return
	}
	j.looked("P1 controller of a rollout")
	unit := rc.UnitOf(before.ID)
	ends := c.After == nil && before.DeletedAt != nil
	step := w.fences(unit) && (ends || w.has(keyRollouts+unit, "cas", "check-index", "delete"))
	if !step && !w.deploys(unit) {
		j.violated("P1", "controller changed past its rollout", w.Index,
			"%s was changed by neither a step of the rollout of unit %s nor a deployment", c.Key, unit)
	}
}
