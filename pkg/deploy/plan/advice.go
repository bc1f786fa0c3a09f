package plan

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// way is another way to deploy a document. A refusal names a way only if it works.
type way struct {
	text  string
	apply func(*ServicePlanner, *record.ServiceSpec)
}

func by(strategy, text string) way {
	return way{text, func(r *ServicePlanner, _ *record.ServiceSpec) { r.Override = strategy }}
}

// advise adds the ways that work to a refusal: it makes a plan with each, from the same records. If none works, it
// keeps the refusal's own advice.
func (s *ServicePlanner) advise(refused *RefusedError, client Client, svc *record.Service, spec *record.ServiceSpec) {
	var works []string
	var fails string
	for _, w := range refused.ways {
		other, document := *s, *spec
		w.apply(&other, &document)
		out, err := other.attempt(client, svc, &document)
		var why *RefusedError
		switch {
		case errors.As(err, &why):
			if len(why.ways) == 1 { // if there were several, one of them could lead back here
				other.advise(why, client, svc, &document)
			}
			fails = fmt.Sprintf("all that could help is refused, too (%s): %s; %s", w.text, why.Reason, why.Do)
		case out.shrinks:
			fails = fmt.Sprintf("all that could help has too little room (%s): %s", w.text, out.Warnings[0])
		case out.stalls != nil:
			fails = fmt.Sprintf("all that could help has too little room (%s): %s", w.text, out.stalls.Reason)
		case err == nil:
			works = append(works, w.text)
		}
	}
	switch {
	case len(works) > 0:
		refused.Do = refused.lead + field.Or(works...)
	case refused.Do == "":
		refused.Do = fails
	}
}

const noRoomMark = "no-room: "

// noRoom makes a *RefusedError for lack of capacity. pods is how many pods a stage can start.
func (p *planner) noRoom(end Room, pods int, format string, args ...any) error {
	refused := &RefusedError{Service: p.spec.Name, Reason: noRoomMark + fmt.Sprintf(format, args...), lead: "use "}
	if n := end.Reasons[scheduler.Selector]; n > 0 && n == len(p.State.Nodes) {
		refused.Reason = fmt.Sprintf(noRoomMark+"the node_selector %q matches none of %s",
			p.spec.NodeSelector, field.Count(n, "node"))
		refused.Do = "no strategy helps: change it, or label nodes: rcctl label node NODE KEY=VALUE"
		return refused
	}
	const free = "free some of what is taken: rcctl place --explain -f FILE shows it"
	switch {
	case len(end.holders) > 0:
		refused.Do = "no strategy helps: free the port, or use another one"
	case p.spec.Mode == rc.EachNode:
		refused.Do = "no strategy helps: " + free
	default:
		refused.Do = "no strategy helps: add nodes, or " + free
	}
	asked := p.knobs.StrategyName()
	if pods > 0 && (asked != rollout.BlueGreenStrategy || pods < p.numbers().Step) {
		strategy, text := "", fmt.Sprintf("update.max_surge: %d", pods)
		if asked == rollout.BlueGreenStrategy {
			strategy, text = rollout.AvailabilityStrategy, "--strategy availability with "+text
		}
		refused.ways = append(refused.ways, way{text, func(r *ServicePlanner, s *record.ServiceSpec) {
			r.Override, s.Update.MaxSurge = cmp.Or(strategy, r.Override), &rollout.Amount{N: pods}
		}})
	}
	for _, other := range []struct{ strategy, how string }{
		{rollout.AvailabilityStrategy, "new pods start first"},
		{rollout.ResourceUtilStrategy, "old pods stop first"},
		{rollout.InPlaceStrategy, "pods stay on their nodes"},
	} {
		if other.strategy != asked {
			refused.ways = append(refused.ways,
				by(other.strategy, fmt.Sprintf("--strategy %s (%s)", other.strategy, other.how)))
		}
	}
	return refused
}
