package rollout

import (
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// State is what a rollout does.
type State string

// The states. In one of the last three a rollout has ended.
const (
	Progressing       State = "progressing"
	Paused            State = "paused"
	WaitingForPromote State = "waiting-for-promote"
	RollingBack       State = "rolling-back"
	Failed            State = "failed"
	Done              State = "done"
	Aborted           State = "aborted"
)

// Ended reports whether nothing follows the state.
func (s State) Ended() bool { return s == Failed || s == Done || s == Aborted }

// Direction is what happens to the pods of a revision.
type Direction string

// The directions.
const (
	Up   Direction = "up"   // it gets pods
	Down Direction = "down" // it loses pods
	Stay Direction = "stay" // it keeps its count
)

// Phase is what happens within a stage. The strategy chooses which phases a stage has.
type Phase string

// The phases. Each stage asks its gate, moves, asks the gate after it and waits for the delay.
const (
	PreDeploying Phase = "pre-deploy"   // the pod of pre_deploy runs once
	BeforeStage  Phase = "before-stage" // the webhook before the stage is asked
	Planning     Phase = "planning"     // the targets of the stage are chosen, once a pod can start or stop
	Moving       Phase = "moving"       // counts move
	AfterStage   Phase = "after-stage"  // the webhook after the stage is asked
	Delaying     Phase = "delay"        // the delay between stages runs
	Promoting    Phase = "promoting"    // it waits for an operator, or for auto_promote
	Joining      Phase = "joining"      // blue-green: the new revision takes the service's name
	Leaving      Phase = "leaving"      // blue-green: the old revisions give up the name
	Keeping      Phase = "keeping"      // blue-green: the old pods stand by for keep_old
	Ending       Phase = "ending"       // all counts are final; the last transaction follows
)

// Record is a rollout under way, at rollouts/<unit>.
type Record struct {
	ID         string            `json:"id"` // ULID
	Service    string            `json:"service"`
	Strategy   string            `json:"strategy"` // one of StrategyNames
	State      State             `json:"state"`
	Resume     State             `json:"resume,omitempty"` // while paused: the state after resume
	Reason     string            `json:"reason,omitempty"` // why it is in this state; a sentence
	By         string            `json:"by"`
	Epoch      string            `json:"nonce"`          // epoch of the store when the counts were written
	Revisions  []Revision        `json:"revisions"`      // the oldest first; exactly one goes up while progressing
	Groups     []rc.ReplicaGroup `json:"groups"`         // of the new revision at the end, in their rolling order
	Knobs      Knobs             `json:"knobs,omitzero"` // as the document names them
	Update     Update            `json:"update"`
	Stage      int               `json:"stage"`  // from 1; 0 before the first
	Stages     int               `json:"stages"` // a forecast
	Phase      Phase             `json:"phase"`
	StartedAt  time.Time         `json:"started_at"`
	StageSince time.Time         `json:"stage_since"`
	ProgressAt time.Time         `json:"progress_at"` // of the last progress, or of Stuck; stage_timeout starts here
	Progress   int               `json:"progress"`    // the most that was reached in this stage, in pods

	WaitingSince  *time.Time `json:"waiting_since,omitempty"` // for promote, or in a phase that ends by time
	BlockedReason string     `json:"held,omitempty"`          // why nothing moves, though not paused
	Gate          *Gate      `json:"gate,omitempty"`          // the webhook that is asked now
	SkipGates     bool       `json:"skip_gates,omitempty"`
	PreDeploy     *PreDeploy `json:"pre_deploy,omitempty"` // until it has ended
	Promoted      bool       `json:"promoted,omitempty"`   // canary, blue-green: it was promoted
	Before        *rc.RC     `json:"before,omitempty"`     // in place: the old controller, for a rollback
	Request       *Request   `json:"request,omitempty"`    // of an operator, until it is carried out or refused
	Failures      []Failure  `json:"failures,omitempty"`   // at most rc.MaxFailing

	// Stuck is what the rollout waits for although stage_timeout has passed. People are alerted to it.
	Stuck string `json:"stuck,omitempty" feature:"stuck"`
}

// Revision is one controller that takes part in a rollout.
type Revision struct {
	RC        string    `json:"rc"`
	Name      string    `json:"name"`
	Rev       int64     `json:"rev"`      // from 1
	Manifest  string    `json:"manifest"` // digest
	Direction Direction `json:"direction"`

	// Percent is the revision's share of the service at the end of this stage.
	Percent *int `json:"percent,omitempty"`
	// Target is how many pods it has at the end of this stage. In place it is how many of them run Manifest.
	Target *int `json:"target,omitempty"`
	// Min and Max are the least and the most pods that it has at the end of the rollout. nil: no such bound.
	Min *int `json:"min,omitempty"`
	Max *int `json:"max,omitempty"`
	// Bounds are in force now. A step of the stage made them.
	Bounds *Bounds `json:"bounds,omitempty"`
	// Before has the revision's groups when the rollout began.
	Before []rc.ReplicaGroup `json:"before"`
	// Abandoned: a rollout to it was given up. It goes down before the others, and never up again.
	Abandoned bool `json:"abandoned,omitempty"`
	// Standby: its pods stand by (blue-green).
	Standby bool `json:"standby,omitempty"`
}

// Gate is the webhook that is asked now, with its tries.
type Gate struct {
	Index  int        `json:"index"` // within the list of the phase
	Tries  int        `json:"tries"`
	NextAt *time.Time `json:"next_at,omitempty"` // time of the next try
	Error  string     `json:"error,omitempty"`   // of the last try
}

// PreDeploy is the controller whose only pod runs once before the first stage.
type PreDeploy struct {
	RC    string    `json:"rc"`
	Name  string    `json:"name"`
	Until time.Time `json:"until"` // it fails if it has not ended by then
}

// Verb is a command of an operator for a rollout.
type Verb string

// The verbs.
const (
	PauseVerb    Verb = "pause"
	ResumeVerb   Verb = "resume"
	PromoteVerb  Verb = "promote"
	AbortVerb    Verb = "abort"
	RollbackVerb Verb = "rollback"
)

// Request is a command that an operator has written into the record.
type Request struct {
	Verb  Verb      `json:"verb"`
	By    string    `json:"by"`
	At    time.Time `json:"at"`
	Force bool      `json:"force,omitempty" feature:"stuck"` // promote also pods that are not available
}

// Failure is a pod that was failing when a stage failed.
type Failure struct {
	RC string `json:"rc"`
	rc.PodFailure
}

// Unit is the unit of the rollout and of all its controllers.
func (r *Record) Unit() string {
	if len(r.Revisions) == 0 {
		return ""
	}
	return rc.UnitOf(r.Revisions[0].RC)
}

// Has reports whether a controller takes part.
func (r *Record) Has(rcID string) bool {
	return r.PreDeploy != nil && r.PreDeploy.RC == rcID ||
		slices.ContainsFunc(r.Revisions, func(v Revision) bool { return v.RC == rcID })
}

// Term is the term of the rollout.
func (r *Record) Term() string { return r.Service + "/" + r.ID }

// Upward returns the revision that grows, nil for none.
func (r *Record) Upward() *Revision {
	if i := slices.IndexFunc(r.Revisions, func(v Revision) bool { return v.Direction == Up }); i >= 0 {
		return &r.Revisions[i]
	}
	return nil
}

// Idle reports whether the rollout waits for an operator, a time, or the end of an obstacle. Owners may then move pods
// off their nodes, because otherwise a stuck rollout would delay drains.
func (r *Record) Idle() bool {
	return r.State == Paused || r.State == WaitingForPromote || r.Stuck != ""
}

// Unfit reports whether the rollout waits for promote although new pods are not available any more.
func (r *Record) Unfit() bool { return r.State == WaitingForPromote && r.WaitingSince == nil }

// RollsBack reports whether the rollout goes back to the old revision, also while it is paused.
func (r *Record) RollsBack() bool {
	return r.State == RollingBack || r.State == Paused && r.Resume == RollingBack
}

// Total returns how many pods the service has at the end.
func (r *Record) Total() int { return rc.Total(r.Groups) }
