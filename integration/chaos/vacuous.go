package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
)

// task has the flags of a run. Runs of earlier versions have none, and are judged by their results.
type task struct {
	Length time.Duration `json:"length"`               // of the time with faults, in nanoseconds
	Faults string        `json:"faults,omitempty"`     // only these; empty: all
	Expect string        `json:"violations,omitempty"` // the run had to find violations of this kind
	// operators deployed services
	Rollouts bool `json:"rollouts,omitempty"`
	Told     bool `json:"told,omitempty"`    // farms pushed to some nodes
	Ordered  bool `json:"ordered,omitempty"` // some groups were ordered
	Owners   bool `json:"owners,omitempty"`  // one farm had a selector, and owners of one controller came and went
}

// How long a run must be before more is required.
const (
	// every kind of fault that was tried has succeeded, and after a wipe an adoption was judged
	everyKindFrom = time.Minute
	servicesFrom  = 2 * time.Minute // minimum and bound of a service were judged; faults may keep stages back
	orderedFrom   = 7 * time.Minute // ordered indices were given up by time; a machine must be away for long before
	// a restore needs a leader, so shorter runs may have none
	restoredFrom = 5 * time.Minute
)

const restoreFault = "snapshot-restore"

// Without one of these checks a promise was not tested.
var checked = []string{
	"P1 author", "P1 fence", "P1 one writer", "P1 register", "P2 version", "P3 placed", "P3 resources",
	"P4 stop", "P5 freed", "P6 minimum",
}

// The first two are needed after a restore and after a wipe, the others in longer runs.
const (
	afterRestore = "R1 placed after a restore"
	afterWipe    = "R1 adopted after a wipe"
	onEachNode   = "P6 each node"               // in a run of a minute or more
	bySelector   = "P3 selected"                // in a run of a minute or more
	byLeader     = "P1 leader"                  // in a run of a minute or more
	byChoice     = "P1 chosen owner"            // in a run of a minute or more
	byOwner      = "P1 owner of one controller" // in a run of two minutes or more, because farms hand over late
)

// A run with rollouts needs these from everyKindFrom on and from servicesFrom on.
var (
	ofRollouts = []string{"P1 step of a rollout", "P1 controller of a rollout"}
	ofServices = []string{"P6 minimum of a service", "P6 bound of a service"}
)

// expected has the violations that a run can be asked to find.
var expected = map[string]func(*checker.Result) bool{
	"fence":   (*checker.Result).Breached,
	"service": (*checker.Result).Overdrawn,
}

// missing returns why a run without violations proves nothing, or "": the run must have had a chance to break each
// promise. A run that must find violations proves something by them.
func (r *report) missing() string {
	if r.Task == nil || r.Task.Expect != "" || r.Judgement == nil {
		return ""
	}
	succeeded := func(name string) bool {
		// The run may stop waiting for a restore that then happens.
		return r.Faults[name] > 0 || name == restoreFault && r.Judgement.Restores > 0
	}
	if !slices.ContainsFunc(faultNames(), succeeded) {
		return "no fault of any kind succeeded, so that nothing was disturbed; run it with -v to see what each says"
	}
	var never []string
	for _, name := range faultNames() {
		tried := r.Faults[failed(name)] > 0
		if name == restoreFault {
			tried = r.Task.Length >= restoredFrom
		}
		if tried && !succeeded(name) {
			never = append(never, name)
		}
	}
	if r.Task.Faults == "" && r.Task.Length >= everyKindFrom && len(never) > 0 {
		return fmt.Sprintf(
			"faults of these kinds were to happen and never did: %s; run it with -v to see what each says",
			strings.Join(never, ", "))
	}
	if r.Task.Length >= everyKindFrom && r.Judgement.Relabelled == 0 {
		return "no node was ever relabelled, so that nothing is known of where pods go then; " +
			"a longer -time gives it a chance"
	}
	if r.Task.Told && r.Told[toldTaken] == 0 {
		return "no node was ever told of its intents"
	}
	needed := slices.Clone(checked)
	if r.Task.Length >= everyKindFrom {
		needed = append(needed, bySelector, onEachNode, byLeader)
	}
	if r.Task.Owners && r.Task.Length >= everyKindFrom {
		needed = append(needed, byChoice)
	}
	if r.Task.Owners && r.Task.Length >= servicesFrom {
		needed = append(needed, byOwner)
	}
	if r.Task.Rollouts && r.Task.Length >= everyKindFrom {
		needed = append(needed, ofRollouts...)
	}
	if r.Task.Rollouts && r.Task.Length >= servicesFrom {
		needed = append(needed, ofServices...)
	}
	if r.Task.Ordered && r.Task.Faults == "" && r.Task.Length >= orderedFrom {
		needed = append(needed, checker.OrderedChecks...)
	}
	if r.Judgement.Restores > 0 {
		needed = append(needed, afterRestore)
	}
	if r.Judgement.Wipes > 0 && r.Task.Length >= everyKindFrom {
		needed = append(needed, afterWipe)
	}
	needed = slices.DeleteFunc(needed, func(group string) bool { return r.Judgement.Checked[group] > 0 })
	if len(needed) > 0 {
		return fmt.Sprintf("these checks had nothing to judge: %s; a longer -time gives them more",
			strings.Join(needed, ", "))
	}
	return ""
}

func failed(name string) string { return name + " (failed)" }

// cutShort counts attempts that the run's end cut short.
func cutShort(name string) string { return name + " (cut short)" }

// verdict decides how a run ends, and why, unless the report says it. Violations count even if little was checked.
func (r *report) verdict(expect string) (code int, why string) {
	missing := r.missing()
	switch {
	case expect != "" && expected[expect](r.Judgement):
		return exitGood, ""
	case expect != "":
		return exitViolations, "no violation of the kind that was expected was found: " + expect
	case len(r.Judgement.Violations)+len(r.Late) > 0:
		return exitViolations, missing
	case missing != "":
		return exitHarness, missing
	default:
		return exitGood, ""
	}
}
