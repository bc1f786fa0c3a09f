package farm

import (
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// operate is one act of an operator.
func (h *history) operate() {
	rec := h.rollout()
	if rec.Index != 0 && h.choose(3) > 0 {
		h.ask([]rollout.Verb{
			rollout.PauseVerb, rollout.ResumeVerb, rollout.PromoteVerb, rollout.PromoteVerb,
			rollout.AbortVerb, rollout.RollbackVerb,
		}[h.choose(6)])
		return
	}
	if h.choose(2) == 0 {
		h.scale(1 + h.choose(5))
		return
	}
	h.deploy()
}

// ask makes a request to the rollout.
func (h *history) ask(verb rollout.Verb) {
	rec := h.rollout()
	if rec.Index == 0 || rec.Value.Request != nil {
		return
	}
	h.logf("an operator asks to %s", verb)
	rec.Value.Request = &rollout.Request{Verb: verb, By: "ann", At: time.Now().UTC()}
	h.store.set(simKeys.Rollouts.Key(simUnit), rec.Value)
	h.store.ring()
}

// scale changes how many pods a revision has, or how many the rollout ends with.
func (h *history) scale(n int) {
	groups := []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &n}}
	if rec := h.rollout(); rec.Index != 0 {
		started, err := rollout.Rescale(rec.Value, groups, h.observed(), "ann")
		h.logf("an operator makes the rollout end with %d: %v", n, err)
		if err == nil {
			h.begins(&started)
		}
		return
	}
	ids := h.ids()
	r := h.rcs()[ids[h.choose(len(ids))]]
	if r.DeletedAt != nil {
		return
	}
	h.logf("an operator scales %s to %d", r.ID, n)
	r.ReplicaGroups = groups
	r.Generation++
	h.store.set(simKeys.RCs.Key(r.ID), r)
	h.store.ring()
}

func (h *history) observed() rollout.Observed {
	return rollout.Observed{Now: time.Now().UTC(), Epoch: h.epoch(), Revisions: h.revisions()}
}

// revisions returns the controllers with their stored statuses.
func (h *history) revisions() map[string]rollout.Seen {
	all := map[string]rollout.Seen{}
	for id, r := range h.rcs() {
		seen := rollout.Seen{RC: r}
		if st := recordAt[rc.Status](h.store, simKeys.Statuses.Key(id)); st.Index != 0 {
			seen.Status = &st.Value
		}
		all[id] = seen
	}
	return all
}

// deploy begins a rollout to another revision, or retargets the one under way.
func (h *history) deploy() {
	strategy := []string{
		rollout.AvailabilityStrategy, rollout.AvailabilityStrategy, rollout.ResourceUtilStrategy,
		rollout.CanaryStrategy, rollout.BlueGreenStrategy,
		rollout.InPlaceStrategy,
	}[h.choose(6)]
	next := h.rev + 1
	s := rollout.Start{
		ID: fmt.Sprintf("R%d", next), Service: "web", By: "ann", Now: time.Now().UTC(), Epoch: h.epoch(),
		InEffect: h.inEffect,
		Knobs:    rollout.Knobs{Strategy: strategy, Step: &rollout.Amount{N: 1 + h.choose(2)}},
		New:      h.revision(next, 2+h.choose(3)),
	}
	for _, id := range h.ids() {
		s.Old = append(s.Old, h.revisions()[id])
	}
	if strategy == rollout.InPlaceStrategy {
		old := s.Old[len(s.Old)-1].RC
		s.New.ID, s.New.Name, s.New.Service, s.New.Generation = old.ID, old.Name, old.Service, old.Generation
	}
	begin := rollout.Begin
	if rec := h.rollout(); rec.Index != 0 {
		begin = func(s rollout.Start) (rollout.Started, error) { return rollout.Retarget(rec.Value, s) }
	}
	started, err := begin(s)
	h.logf("an operator deploys revision %d, %s: %v", next, strategy, err)
	if err == nil {
		h.rev, h.inEffect = next, next
		h.begins(&started)
	}
}

// begins writes the records of a rollout that begins or changes.
func (h *history) begins(s *rollout.Started) {
	t := &simTxn{}
	for i := range s.RCs {
		t.set(simKeys.RCs.Key(s.RCs[i].ID), s.RCs[i])
	}
	t.set(simKeys.Rollouts.Key(simUnit), s.Record)
	t.set(simKeys.RolloutTroubles.Key(simUnit), nil)
	h.store.land(t)
	h.store.ring()
}
