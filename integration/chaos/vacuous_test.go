package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
)

// full is the report of a minute in which enough happened.
func full() *report {
	r := &report{
		Task:   &task{Length: time.Minute, Rollouts: true, Told: true, Ordered: true, Owners: true},
		Told:   map[string]int{toldTaken: 1},
		Faults: map[string]int{"farm-kill": 2, "leader-kill": 1, failed("leader-kill"): 3},
		Judgement: &checker.Result{Checked: map[string]int{
			bySelector: 1, onEachNode: 1, byLeader: 1,
			byChoice: 1, byOwner: 1,
		}, Relabelled: 1},
	}
	for _, group := range slices.Concat(checked, ofRollouts, ofServices, checker.OrderedChecks) {
		r.Judgement.Checked[group] = 1
	}
	return r
}

func TestVacuousRunsAreNotGreen(t *testing.T) {
	t.Parallel()
	fault := func(name string, n int) func(*report) { return func(r *report) { r.Faults[name] = n } }
	unchecked := func(group string) func(*report) { return func(r *report) { delete(r.Judgement.Checked, group) } }
	never, restored := fault(failed("slow-network"), 1), func(r *report) { r.Judgement.Restores = 1 }
	restoredOnce := func(change func(*report)) func(*report) {
		return func(r *report) { restored(r); r.Judgement.Checked[afterRestore] = 1; change(r) }
	}
	lasting := func(length time.Duration) func(*report) { return func(r *report) { r.Task.Length = length } }
	for name, tt := range map[string]struct {
		change func(*report)
		more   func(*report)
		want   string // part of the text of missing; empty: nothing is missing
	}{
		"enough":   {want: ""},
		"no fault": {func(r *report) { clear(r.Faults) }, nil, "no fault of any kind"},
		"only faults that failed": {func(r *report) {
			r.Faults = map[string]int{failed("farm-kill"): 9}
		}, nil, "no fault of any kind"},
		"nothing but an undo": {
			func(r *report) { r.Faults = map[string]int{"farm-kill (undo)": 1} },
			nil, "no fault of any kind",
		},
		"a kind that never succeeded": {never, nil, "slow-network"},
		"it once did":                 {never, fault("slow-network", 1), ""},
		"it was cut short":            {fault(cutShort("slow-network"), 1), nil, ""},
		"in a short run":              {never, lasting(time.Minute - 1), ""},
		"in a run of few kinds":       {never, func(r *report) { r.Task.Faults = "slow-network,farm-kill" }, ""},
		"no restore in a minute":      {fault(failed(restoreFault), 5), nil, ""},
		"no restore in five":          {lasting(restoredFrom), nil, restoreFault},
		"a restore that nobody waited for": {
			lasting(restoredFrom),
			func(r *report) { restored(r); r.Judgement.Checked[afterRestore] = 1 }, "",
		},
		"nothing placed after a restore": {restored, nil, afterRestore},
		"nothing adopted after a wipe":   {func(r *report) { r.Judgement.Wipes = 1 }, nil, afterWipe},
		"nor in a short run":             {lasting(time.Minute - 1), func(r *report) { r.Judgement.Wipes = 1 }, ""},
		"nothing was relabelled": {
			func(r *report) { r.Judgement.Relabelled = 0 },
			nil, "no node was ever relabelled",
		},
		"no node was told": {func(r *report) { r.Told = map[string]int{"not now": 9} }, nil, "no node was ever told"},
		"in a run from before they were": {
			func(r *report) { r.Told = nil },
			func(r *report) { r.Task.Told = false }, "",
		},
		"nor in forty seconds": {
			lasting(time.Minute - 1),
			func(r *report) { r.Judgement.Relabelled = 0 }, "",
		},
		"nothing was placed by selector":         {unchecked(bySelector), nil, bySelector},
		"the leader wrote nothing":               {unchecked(byLeader), nil, byLeader},
		"no farm chose":                          {unchecked(byChoice), nil, byChoice},
		"no owner of one in two minutes":         {lasting(servicesFrom), unchecked(byOwner), byOwner},
		"nor in one":                             {unchecked(byOwner), nil, ""},
		"in a run from before there were owners": {unchecked(byChoice), func(r *report) { r.Task.Owners = false }, ""},
		"nor by selector in forty seconds":       {lasting(time.Minute - 1), unchecked(bySelector), ""},
		"no rollout made a step":                 {unchecked("P1 step of a rollout"), nil, "P1 step of a rollout"},
		"nor in forty seconds ":                  {lasting(time.Minute - 1), unchecked("P1 step of a rollout"), ""},
		"no minimum of a service": {
			lasting(servicesFrom),
			unchecked("P6 minimum of a service"), "P6 minimum of a service",
		},
		"nor in less than two minutes": {lasting(servicesFrom - 1), unchecked("P6 minimum of a service"), ""},
		"nor in a run without rollouts": {
			unchecked("P1 step of a rollout"),
			func(r *report) { r.Task.Rollouts = false }, "",
		},
		"no index was given up by time": {
			lasting(orderedFrom), restoredOnce(unchecked(checker.GivenUpByTime)),
			checker.GivenUpByTime,
		},
		"no copy stopped by itself": {
			lasting(orderedFrom), restoredOnce(unchecked(checker.SelfStopped)),
			checker.SelfStopped,
		},
		"nor in less than seven minutes": {
			lasting(orderedFrom - 1),
			restoredOnce(unchecked(checker.GivenUpByTime)), "",
		},
		"nor with some kinds of faults": {
			lasting(orderedFrom),
			func(r *report) { unchecked(checker.GivenUpByTime)(r); r.Task.Faults = "farm-kill" }, "",
		},
		"in a run from before they were ordered": {
			lasting(orderedFrom),
			restoredOnce(func(r *report) { unchecked(checker.GivenUpByTime)(r); r.Task.Ordered = false }), "",
		},
		"violations are expected": {
			func(r *report) { clear(r.Faults) },
			func(r *report) { r.Task.Expect = "fence" }, "",
		},
		"an old run, whose task is unknown": {
			func(r *report) { clear(r.Faults) },
			func(r *report) { r.Task = nil }, "",
		},
	} {
		r := full()
		for _, change := range []func(*report){tt.change, tt.more} {
			if change != nil {
				change(r)
			}
		}
		got := r.missing()
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q is missing, expected %q", name, got, tt.want)
		}
	}
	for _, group := range slices.Concat(checked, ofRollouts, ofServices) {
		r := full()
		if slices.Contains(ofServices, group) {
			r.Task.Length = servicesFrom
		}
		unchecked(group)(r)
		if got := r.missing(); !strings.Contains(got, group) {
			t.Errorf("without %s: %q is missing", group, got)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	breach := checker.Violation{Promise: "P1", Rule: "lock not held by a farm"}
	minimum := checker.Violation{Promise: "P6", Rule: "service below its minimum"}
	other := checker.Violation{Promise: "P6", Rule: "above the surge"}
	for name, tt := range map[string]struct {
		found   []checker.Violation
		late    []string
		vacuous bool
		expect  string
		code    int
		says    bool
	}{
		"good":       {code: exitGood},
		"vacuous":    {vacuous: true, code: exitHarness, says: true},
		"violations": {found: []checker.Violation{other}, code: exitViolations},
		"late":       {late: []string{"late"}, code: exitViolations},
		"violations, little looked at": {
			found:   []checker.Violation{other},
			vacuous: true, code: exitViolations, says: true,
		},
		"of a service": {found: []checker.Violation{minimum}, expect: "service", code: exitGood},
		"expected of a service": {
			found:  []checker.Violation{breach, other},
			expect: "service", code: exitViolations, says: true,
		},
		"expected": {found: []checker.Violation{breach}, vacuous: true, expect: "fence", code: exitGood},
		"another one was expected": {
			found:  []checker.Violation{other},
			expect: "fence", code: exitViolations, says: true,
		},
		"expected ones were not found": {expect: "fence", code: exitViolations, says: true},
		"nor looked for long enough":   {vacuous: true, expect: "fence", code: exitViolations, says: true},
	} {
		r := full()
		r.Judgement.Violations, r.Late = tt.found, tt.late
		if tt.vacuous {
			clear(r.Faults)
		}
		if code, why := r.verdict(tt.expect); code != tt.code || (why != "") != tt.says {
			t.Errorf("%s: exit code %d, %q", name, code, why)
		}
	}
}
