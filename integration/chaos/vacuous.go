package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
)

// task is what a run was told to do. Runs from before it was noted are judged by what they show alone.
type task struct {
	Length time.Duration `json:"length"`               // of the time with faults, in nanoseconds
	Faults string        `json:"faults,omitempty"`     // only these; empty: all
	Expect string        `json:"violations,omitempty"` // of that kind
	// Rollouts: operators deployed services, too.
	Rollouts bool `json:"rollouts,omitempty"`
	Told     bool `json:"told,omitempty"`    // farms told some nodes of their intents
	Ordered  bool `json:"ordered,omitempty"` // some groups were ordered
	Owners   bool `json:"owners,omitempty"`  // one farm had a selector, and owners of one controller came and went
}

// How long a run must be before it must have shown something.
const (
	everyKindFrom = time.Minute     // of each kind of fault that was tried one succeeded, and what ran before a wipe was waited for
	servicesFrom  = 2 * time.Minute // minimum and bound of a service were at stake, which faults keep stages from
	orderedFrom   = 7 * time.Minute // ordered indices were given up by time, for which a machine must be away for long
	restoredFrom  = 5 * time.Minute // also of restored snapshots, which need a leader and may be too few to judge by before
)

const restoreFault = "snapshot-restore"

// checked are the groups of checks without which nothing is known about a promise.
var checked = []string{
	"P1 author", "P1 fence", "P1 one writer", "P1 register", "P2 version", "P3 placed", "P3 resources", "P4 stop", "P5 freed", "P6 minimum",
}

// These are also needed where a snapshot was restored, and where everything was deleted.
const (
	afterRestore = "R1 placed after a restore"
	afterWipe    = "R1 adopted after a wipe"
	onEachNode   = "P6 each node"               // likewise
	bySelector   = "P3 selected"                // in a run of a minute or more
	byLeader     = "P1 leader"                  // likewise
	byChoice     = "P1 chosen owner"            // likewise
	byOwner      = "P1 owner of one controller" // in a run of two minutes or more, as farms hand over late
)

// These are what rollouts are for, from everyKindFrom and from servicesFrom on.
var (
	ofRollouts = []string{"P1 step of a rollout", "P1 controller of a rollout"}
	ofServices = []string{"P6 minimum of a service", "P6 bound of a service"}
)

// expected are the kinds of violations that a run may be for, each with what tells whether one was found.
var expected = map[string]func(*checker.Result) bool{"fence": (*checker.Result).Breached, "service": (*checker.Result).Overdrawn}

// missing says why a run proves nothing although no violation was found in it, "" when it does: a promise is only kept where
// it could have been broken. A run that must find violations has proved by them what it is for.
func (r *report) missing() string {
	if r.Task == nil || r.Task.Expect != "" || r.Judgement == nil {
		return ""
	}
	succeeded := func(name string) bool {
		// A restore may come after nobody waits for it any more.
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
		return fmt.Sprintf("faults of these kinds were to happen and never did: %s; run it with -v to see what each says", strings.Join(never, ", "))
	}
	if r.Task.Length >= everyKindFrom && r.Judgement.Relabelled == 0 {
		return "no node was ever relabelled, so that nothing is known of where pods go then; a longer -time gives it a chance"
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
		return fmt.Sprintf("these checks had nothing to judge: %s; a longer -time gives them more", strings.Join(needed, ", "))
	}
	return ""
}

// failed is what the attempts at a fault that failed are counted under.
func failed(name string) string { return name + " (failed)" }

// cutShort is what the attempts are counted under that the end of the run came before.
func cutShort(name string) string { return name + " (cut short)" }

// verdict decides how a run ends, and says why unless the report has said it: what is found is found, however little was
// looked at.
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
