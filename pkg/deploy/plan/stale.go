package plan

import (
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
)

// staleness returns a line for each change since a plan was made. It ignores reports of owners, and controllers that
// were being deleted.
func staleness(before, now *record.Service) []string {
	switch {
	case before == nil && now == nil:
		return nil
	case before == nil:
		return []string{fmt.Sprintf("the service was deployed by %s", now.Deployed.By)}
	case now == nil:
		return []string{"the service was deleted"}
	}
	var lines []string
	if before.Index != now.Index {
		for _, f := range EvalSpecChange(&before.Deployed.Spec, &now.Deployed.Spec).Fields {
			lines = append(lines, f.String())
		}
		if len(lines) == 0 {
			lines = []string{fmt.Sprintf("the document was deployed again by %s", now.Deployed.By)}
		}
	}
	was, wasState := underWay(before)
	if is, state := underWay(now); was != is {
		lines = append(lines, fmt.Sprintf("rollout: %s -> %s", wasState, state))
	}
	if before.Rollout != nil {
		return lines // the rollout changes its controllers all the time
	}
	for i := range before.Controllers {
		was := &before.Controllers[i]
		is := now.Controller(was.RC.ID)
		switch {
		case was.RC.DeletedAt != nil: // the controller is removed anyway
		case is == nil:
			lines = append(lines, fmt.Sprintf("controller %s: it was deleted", was.RC.Name))
		case is.Index != was.Index:
			lines = append(lines, recordChanges(was, is)...)
		}
	}
	for i := range now.Controllers {
		if before.Controller(now.Controllers[i].RC.ID) == nil {
			lines = append(lines, fmt.Sprintf("controller %s: it was created", now.Controllers[i].RC.Name))
		}
	}
	return lines
}

// underWay returns the id of the rollout under way, "" for none, and its state as text.
func underWay(s *record.Service) (id, state string) {
	if s.Rollout == nil {
		return "", "(none)"
	}
	return s.Rollout.ID, string(s.Rollout.State)
}

func recordChanges(was, is *record.Controller) []string {
	before, after := map[string]Leaf{}, map[string]Leaf{}
	Flatten("", was.RC, before)
	Flatten("", is.RC, after)
	var lines []string
	for _, f := range Differences(before, after) {
		if name := topOf(f.Path); name != "generation" && name != "changed_by" {
			lines = append(lines, fmt.Sprintf("controller %s: %s", was.RC.Name, name))
		}
	}
	if len(lines) == 0 {
		lines = []string{fmt.Sprintf("controller %s: it was written again", was.RC.Name)}
	}
	return slices.Compact(lines) // a line for each field
}
