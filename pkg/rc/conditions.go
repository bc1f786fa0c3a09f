package rc

import (
	"slices"
	"time"
)

// ConditionType names one condition of a controller, or an alert.
type ConditionType string

// The conditions. docs/reference has their comments.
const (
	// Converged: exactly the desired pods run, and they are available.
	Converged ConditionType = "Converged"
	// InsufficientNodes: some replicas have no node.
	InsufficientNodes ConditionType = "InsufficientNodes"
	// Blocked: an upgrade in place is halted, or a pod does not leave the node that it has to leave.
	Blocked ConditionType = "Blocked"
	// CrashLooping: processes of pods end again and again, each time soon after their start.
	CrashLooping ConditionType = "CrashLooping"
	// Regressed: nodes run pods that the records did not have; these pods are kept as they run (R2).
	Regressed ConditionType = "Regressed"
	// Holding: the records are new or went back in time. No pod starts, moves or stops until every living node has
	// reported what it runs (R1).
	Holding ConditionType = "Holding"
	// BreakerTripped: no pod may be stopped (R14).
	BreakerTripped ConditionType = "BreakerTripped"
	// NodeLost: pods are on nodes whose machine is lost, or whose preparer is gone.
	NodeLost ConditionType = "NodeLost"
	// Misplaced: pods are kept on nodes that the selector does not match.
	Misplaced ConditionType = "Misplaced"
	// Unreadable: a record of the controller, or a report about its pods, cannot be read.
	Unreadable ConditionType = "Unreadable"
	// BooksDiffer: an outside scheduler did not take a share of a node back, or did not book one.
	BooksDiffer ConditionType = "BooksDiffer"
	// SchedulerFailing: pods lack nodes, and an outside scheduler cannot be asked for nodes, or its answer cannot be
	// used.
	SchedulerFailing ConditionType = "SchedulerFailing"
	// WaitsForService: pods are not placed or not stopped because of the other revisions of the service, or its bounds.
	WaitsForService ConditionType = "WaitsForService"
	// RolloutGone: an upgrade in place has a limit, and the rollout that would raise the limit is gone.
	RolloutGone ConditionType = "RolloutGone"
	// RolloutTrouble: the service's rollout has failed, rolls back or pauses by itself, or its record cannot be read.
	// The oldest kept revision has it.
	RolloutTrouble ConditionType = "RolloutTrouble"
	// RolloutStuck: the service's rollout, or its rollback, waits although stage_timeout has passed. The oldest
	// kept revision has it.
	RolloutStuck ConditionType = "RolloutStuck"
	// AwaitsStop: an index of an ordered group is not placed, because nothing proves that its copy on a lost node has
	// stopped.
	AwaitsStop ConditionType = "AwaitsStop"
	// RequestVoid: a request of an operator was not carried out, because the facts behind it had changed.
	RequestVoid ConditionType = "RequestVoid"
	// Unclaimed: no living farm works on the controller. The leader sets it, because there is no owner.
	Unclaimed ConditionType = "Unclaimed"
)

// IsAboutRollout reports whether a condition is about a rollout, and keeps no pod of the controller from its goal.
func (t ConditionType) IsAboutRollout() bool { return t == RolloutTrouble || t == RolloutStuck }

// Alerts without a condition.
const (
	// NotConverged: a controller has not converged for a long time, and is neither disabled nor deleted.
	NotConverged ConditionType = "NotConverged"
	// PreparerGone: pods are on a node whose machine lives, but whose preparer is gone. The condition NodeLost is true
	// then, too, but the alert NodeLost is only for lost machines.
	PreparerGone ConditionType = "PreparerGone"
	// ElectionTrouble: the farms cannot elect a leader as they should: none answers, they disagree, or some of them
	// cannot be chosen. It belongs to no controller.
	ElectionTrouble ConditionType = "ElectionTrouble"
	// GateHeld: new fields of records wait for farms or nodes of an older version. It belongs to no controller.
	GateHeld ConditionType = "GateHeld"
)

// ElectionTroubleAfter is how long an election may take before an alert.
const ElectionTroubleAfter = 30 * time.Second

// Severity is how bad a condition is while it is true.
type Severity int

// The severities.
const (
	NoCondition Severity = iota // it is only an alert
	Good
	Passing // it ends by itself, or with the next change
	Bad
)

// Kind describes a type of condition, except for the rule that sets it.
type Kind struct {
	Type     ConditionType
	Severity Severity
	// Urgency orders the alerts of incidents that begin together, 1 first, equal ones by their order in Kinds. Zero: no
	// alert.
	Urgency int
	// After is how long the condition must last before the alert. A state that ends by itself should wake no one.
	After time.Duration
	// What describes the condition, before its reason. Next is what helps; {rc} stands for the controller's name. If
	// both are empty, package inspect has its own texts.
	What, Next string
}

// Kinds are all conditions and alerts. A controller is shown with the first true one that is worse than Good, else with
// Converged if that is true. The worst comes first, and a cause before its effects.
var Kinds = []Kind{ // type, severity, urgency, after, what it is, what helps
	{Converged, Good, 0, 0, "", ""},
	{Unclaimed, Bad, 5, 30 * time.Second, "", ""},
	{Unreadable, Bad, 1, 0, "", ""},
	{BreakerTripped, Bad, 1, 0, "", ""},
	{CrashLooping, Bad, 4, 0, "", ""}, // it takes three ends, so no further wait is needed
	{Blocked, Bad, 6, 10 * time.Second, "", ""},
	{
		SchedulerFailing, Bad, 6, 10 * time.Second,
		"The scheduler that its farm asks for nodes (farm --scheduler-url) does not help",
		"Start it or look at its log; the farm asks again within 15 s. Until then nothing is placed, and pods that " +
			"run are left alone.",
	},
	{InsufficientNodes, Bad, 6, 10 * time.Second, "", ""},
	{NodeLost, Bad, 3, 0, "", ""},
	{
		BooksDiffer, Bad, 3, 0,
		"The scheduler's books differ from what is placed",
		"Look at the scheduler; its farm asks it again by itself.",
	},
	{
		Holding, Passing, 8, 5 * time.Minute,
		"Nothing is added for now",
		"Wait; if a node is named for long, look at its preparer's log, or stop its Consul service if it is gone for " +
			"good. Where it cannot answer: rcctl farm release-hold NODE",
	},
	{
		Regressed, Passing, 10, time.Hour,
		"Pods were found running that the records did not know, and stay as they are",
		"Say what is wanted: rcctl apply -f FILE",
	},
	{
		WaitsForService, Bad, 0, 0,
		"It waits for the other revisions of its service",
		"Wait; if one of them holds or has pods that were found running, look at that one: rcctl rc explain REF",
	},
	{
		AwaitsStop, Bad, 8, 5 * time.Minute,
		"Replicas of an ordered group are not placed",
		"Bring the node back, or wait where a time is named. If the pod is gone for good: rcctl pod forget POD " +
			"--node NODE --i-am-sure",
	},
	{
		RolloutGone, Bad, 7, 10 * time.Second,
		"Its upgrade in place has stopped midway",
		"Deploy the service again.",
	},
	{
		RolloutStuck, Bad, 2, 0,
		"The rollout of its service waits for longer than its stage_timeout",
		"Look at it: rcctl rollout status SERVICE. It goes on by itself when it can. Deploying another version ends " +
			"the wait, too.",
	},
	{
		RolloutTrouble, Bad, 1, 0,
		"The rollout of its service needs somebody",
		"See why: rcctl history SERVICE; while it is under way: rcctl rollout status SERVICE. After its end, the next " +
			"deployment ends this condition.",
	},
	{
		RequestVoid, Bad, 0, 0,
		"What an operator asked for was not carried out",
		"Look at its pods (rcctl pods --rc {rc}). If one is gone for good all the same, ask again: rcctl pod forget " +
			"POD --node NODE",
	},
	{
		Misplaced, Bad, 6, 10 * time.Second,
		"Pods stay on nodes that its selector does not match",
		"Label the nodes as they were, or change node_selector. A pod of a static controller leaves with: rcctl node " +
			"drain NODE --deadline 0s --force",
	},
	{ElectionTrouble, NoCondition, 5, ElectionTroubleAfter, "", ""},
	{PreparerGone, NoCondition, 5, 10 * time.Second, "", ""},
	{NotConverged, NoCondition, 9, 15 * time.Minute, "", ""},
	{GateHeld, NoCondition, 10, time.Hour, "", ""}, // an upgrade takes its time
}

// Alerts are the kinds that cause alerts, the most urgent first.
var Alerts = alerts()

func alerts() []Kind {
	kinds := slices.DeleteFunc(slices.Clone(Kinds), func(k Kind) bool { return k.Urgency == 0 })
	slices.SortStableFunc(kinds, func(a, b Kind) int { return a.Urgency - b.Urgency })
	return kinds
}

// SeverityOf returns NoCondition for a condition of another version.
func SeverityOf(t ConditionType) Severity {
	if i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Type == t }); i >= 0 {
		return Kinds[i].Severity
	}
	return NoCondition
}
