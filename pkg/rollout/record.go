package rollout

import (
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// State says what a rollout is doing.
type State string

// The states. A rollout in one of the last three has ended: its record is removed by the transaction that writes its outcome.
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

// Direction says what happens to the pods of a revision.
type Direction string

// The directions.
const (
	Up   Direction = "up"   // it gets pods
	Down Direction = "down" // it loses them
	Stay Direction = "stay" // it keeps what it has
)

// Phase is what happens within a stage. Which phases there are is the strategy's business.
type Phase string

// The phases. Each stage asks its gate, moves, asks the gate after it and waits for the delay.
const (
	PreDeploying Phase = "pre-deploy"   // a controller of its own runs once
	BeforeStage  Phase = "before-stage" // the webhook before the stage is asked
	Planning     Phase = "planning"     // there is no room for the stage yet
	Moving       Phase = "moving"       // counts move
	AfterStage   Phase = "after-stage"  // the webhook after the stage is asked
	Delaying     Phase = "delay"        // the delay between stages runs
	Promoting    Phase = "promoting"    // an operator, or time, has to promote
	Joining      Phase = "joining"      // blue-green: the new revision takes the service's name
	Leaving      Phase = "leaving"      // blue-green: the old ones give it up
	Keeping      Phase = "keeping"      // blue-green: the old ones stand by for keep_old
	Ending       Phase = "ending"       // all counts are final; the last transaction follows
)

// Record is a rollout under way, at rollouts/<unit>.
type Record struct {
	ID            string            `json:"id"` // ULID
	Service       string            `json:"service"`
	Strategy      string            `json:"strategy"` // a key of NewRolloutStrategy, or InPlaceStrategy, CanaryStrategy, BlueGreenStrategy
	State         State             `json:"state"`
	Resume        State             `json:"resume,omitempty"` // while paused: what it goes back to
	Reason        string            `json:"reason,omitempty"` // why it is in this state; a sentence
	By            string            `json:"by"`
	Epoch         string            `json:"nonce"`          // of the cluster; the counts of the controllers are about that world
	Revisions     []Revision        `json:"revisions"`      // the oldest first; exactly one goes up while progressing
	Groups        []rc.ReplicaGroup `json:"groups"`         // what the new revision has at the end, in the order in which they roll
	Knobs         Knobs             `json:"knobs,omitzero"` // as the document names them
	Update        Update            `json:"update"`
	Stage         int               `json:"stage"`  // from 1; 0 before the first
	Stages        int               `json:"stages"` // a forecast
	Phase         Phase             `json:"phase"`
	StartedAt     time.Time         `json:"started_at"`
	StageSince    time.Time         `json:"stage_since"`
	ProgressAt    time.Time         `json:"progress_at"`             // of the last progress, or of Stuck; stage_timeout counts from it
	Progress      int               `json:"progress"`                // the most that was reached in this stage, in pods
	WaitingSince  *time.Time        `json:"waiting_since,omitempty"` // for promote, or in a phase that ends by time
	BlockedReason string            `json:"held,omitempty"`          // why nothing moves although the rollout is not paused: breaker, another world
	Gate          *Gate             `json:"gate,omitempty"`          // the webhook that is asked now
	SkipGates     bool              `json:"skip_gates,omitempty"`
	PreDeploy     *PreDeploy        `json:"pre_deploy,omitempty"` // until it has ended
	Promoted      bool              `json:"promoted,omitempty"`   // canary, blue-green: nothing waits for promote any more
	Before        *rc.RC            `json:"before,omitempty"`     // in place: the controller as it was, for a way back
	Request       *Request          `json:"request,omitempty"`    // what an operator asks for, until it is carried out or refused
	Failures      []Failure         `json:"failures,omitempty"`   // at most rc.MaxFailing

	// Stuck says what the rollout waits for although stage_timeout has passed. People are alerted to it.
	Stuck string `json:"stuck,omitempty" feature:"stuck"`
}

// Revision is one controller that takes part in a rollout.
type Revision struct {
	RC        string            `json:"rc"`
	Name      string            `json:"name"`
	Rev       int64             `json:"rev"`      // from 1
	Manifest  string            `json:"manifest"` // digest
	Direction Direction         `json:"direction"`
	Percent   *int              `json:"percent,omitempty"` // share of the service that it holds at the end of this stage
	Target    *int              `json:"target,omitempty"`  // pods that it has at the end of this stage; in place: pods that run Manifest
	Min       *int              `json:"min,omitempty"`     // the least and most that it has at the end; nil: no such bound
	Max       *int              `json:"max,omitempty"`
	Bounds    *Bounds           `json:"bounds,omitempty"`    // in force now, made by a step of the stage
	Before    []rc.ReplicaGroup `json:"before"`              // its groups when the rollout began
	Abandoned bool              `json:"abandoned,omitempty"` // a rollout to it was given up: it goes down before the others, and never up again
	Standby   bool              `json:"standby,omitempty"`   // blue-green: its pods stand by
}

// Gate is one webhook that is asked, with what came of it so far.
type Gate struct {
	Index  int        `json:"index"` // within the list of the phase
	Tries  int        `json:"tries"`
	NextAt *time.Time `json:"next_at,omitempty"` // not asked again before
	Error  string     `json:"error,omitempty"`   // of the last try
}

// PreDeploy is the controller whose only pod runs once before the first stage.
type PreDeploy struct {
	RC    string    `json:"rc"`
	Name  string    `json:"name"`
	Until time.Time `json:"until"` // it has failed when it has not ended by then
}

// Verb is what an operator asks of a rollout.
type Verb string

// The verbs.
const (
	PauseVerb    Verb = "pause"
	ResumeVerb   Verb = "resume"
	PromoteVerb  Verb = "promote"
	AbortVerb    Verb = "abort"
	RollbackVerb Verb = "rollback"
)

// Request is what an operator asks for.
type Request struct {
	Verb  Verb      `json:"verb"`
	By    string    `json:"by"`
	At    time.Time `json:"at"`
	Force bool      `json:"force,omitempty" feature:"stuck"` // promote also pods that are not available
}

// Failure is a pod that kept a stage from being reached.
type Failure struct {
	RC string `json:"rc"`
	rc.PodFailure
}

// Unit is the unit that the rollout is of: that of all its controllers.
func (r *Record) Unit() string {
	if len(r.Revisions) == 0 {
		return ""
	}
	return rc.UnitOf(r.Revisions[0].RC)
}

// Has reports whether the rollout is about a controller.
func (r *Record) Has(rcID string) bool {
	return r.PreDeploy != nil && r.PreDeploy.RC == rcID ||
		slices.ContainsFunc(r.Revisions, func(v Revision) bool { return v.RC == rcID })
}

// Term names the rollout with its service.
func (r *Record) Term() string { return r.Service + "/" + r.ID }

// Upward returns the revision that gets pods, nil if none does.
func (r *Record) Upward() *Revision {
	if i := slices.IndexFunc(r.Revisions, func(v Revision) bool { return v.Direction == Up }); i >= 0 {
		return &r.Revisions[i]
	}
	return nil
}

// Idle reports whether nothing moves until a person, or time, says so, or until an obstacle has gone. Owners may let pods
// leave their nodes meanwhile: otherwise a rollout that is stuck would hold up drains for as long.
func (r *Record) Idle() bool {
	return r.State == Paused || r.State == WaitingForPromote || r.Stuck != ""
}

// Unfit reports whether the rollout waits for promote with pods that are not available any more.
func (r *Record) Unfit() bool { return r.State == WaitingForPromote && r.WaitingSince == nil }

// GoesBack reports whether the old revision comes back, be it that the rollout is paused in that.
func (r *Record) GoesBack() bool {
	return r.State == RollingBack || r.State == Paused && r.Resume == RollingBack
}

// Total returns how many pods the service has at the end.
func (r *Record) Total() int { return total(r.Groups) }

func total(groups []rc.ReplicaGroup) int { return (&rc.RC{ReplicaGroups: groups}).Desired() }
