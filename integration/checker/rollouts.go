package checker

import (
	"encoding/json"
	"reflect"
	"strings"
)

// rolloutRecord is a rollout under way, as far as rules ask.
type rolloutRecord struct {
	ID      string `json:"id"`
	Service string `json:"service"`
}

// term is what the mutator of the rollout's controllers names.
func (r *rolloutRecord) term() string { return r.Service + "/" + r.ID }

// rolloutOf returns the service whose rollout a key is the record of; ok is false for bells and all else.
func rolloutOf(key string) (service string, ok bool) {
	service, ours := strings.CutPrefix(key, prefix+"rollouts/")
	return service, ours && service != "" && !strings.Contains(service, "/")
}

// rollouts judges who changes rollouts, and controllers that one is in charge of: the farm that holds the rollout's lock, under its fence,
// or an operator, who begins another rollout or asks for something.
func (j *judgement) rollouts(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		if name, is := rolloutOf(c.Key); is && !j.asks(w, c) {
			j.steps(w, name)
		}
		if before := c.Before.controller(); before != nil && before.Mutator != "" {
			j.mutated(w, c, before)
		}
	}
}

// asks reports whether a change of a rollout's record is an operator's, and says of which version it is: nothing differs but what is asked
// for, or it is part of a deployment; one that begins a rollout finds its lock free.
func (j *judgement) asks(w *Write, c *Change) bool {
	before, after := c.Before.rollout(), c.After.rollout()
	switch {
	case after == nil || !w.has(c.Key, "cas"):
		return false
	case before == nil:
		lock := w.before(keyLocks + "rollout/" + after.Service)
		return w.deploys(after.Service) && (lock == nil || lock.Session == "")
	default:
		return w.deploys(after.Service) || reflect.DeepEqual(withoutRequest(c.Before), withoutRequest(c.After))
	}
}

// deploys reports whether the transaction is an operator's deployment: it writes the document of the service, as it was read.
func (w *Write) deploys(name string) bool { return w.has(prefix+"deployments/"+name+"/spec", "cas") }

// withoutRequest returns all fields of a record but the request.
func withoutRequest(k *Key) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	if json.Unmarshal(k.Value, &all) != nil {
		return nil
	}
	delete(all, "request")
	return all
}

// steps judges one write of a rollout's runner.
func (j *judgement) steps(w *Write, name string) {
	j.looked(ruleStep)
	lock := keyLocks + "rollout/" + name
	farm, _ := w.holderOf(lock)
	if farm == "" {
		j.violated("P1", ruleRolloutNotLocked, w.Index, "the rollout of %s was changed while no farm held its lock", name)
		return
	}
	if !w.has(lock, "check-session") || !w.has(lock, "check-index") {
		j.violated("P1", "rollout without a fence", w.Index, "the rollout of %s was changed by a transaction that does not check its lock, which %s held", name, farm)
	}
	for i := range w.Changes {
		if a := w.Changes[i].After.audit(); a != nil && a.Who != farm {
			j.violated("P1", ruleRunner, w.Index, "%s changed the rollout of %s, whose lock was held by %s", a.Who, name, farm)
		}
	}
}

// The rules whose violation proves that the fence failed.
const (
	ruleRolloutNotLocked = "rollout changed while no farm held its lock"
	ruleRunner           = "rollout changed by another than its runner"
)

// mutated judges a change of a controller that a rollout is in charge of. One whose rollout is not there any more may be released.
func (j *judgement) mutated(w *Write, c *Change, before *controller) {
	name, _, _ := strings.Cut(before.Mutator, "/")
	r := w.before(prefix + "rollouts/" + name).rollout()
	if r == nil || r.term() != before.Mutator {
		return
	}
	j.looked("P1 controller of a rollout")
	lock := keyLocks + "rollout/" + name
	fenced := w.has(lock, "check-session") && w.has(lock, "check-index")
	if !fenced && !w.deploys(name) {
		j.violated("P1", "controller changed past its rollout", w.Index, "%s was changed by neither the runner of %s nor a deployment", c.Key, before.Mutator)
	}
}
