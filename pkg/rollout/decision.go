package rollout

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Observed is what the owner of the service has read and found before it asks Decide.
type Observed struct {
	Now time.Time
	// Watched is for how long this process has seen the record with its present ProgressAt, by a clock that is never set;
	// nil: it is not known. A stage times out only after that time, too, because the clock of Now may be wrong.
	Watched *time.Duration
	Epoch   string // of the cluster
	Breaker string // why the breaker is tripped, "" if it is not
	// Revisions are the controllers of the record's revisions by id. One that is known not to exist is there with an empty RC.ID; one that is
	// missing cannot be read, and nothing moves meanwhile.
	Revisions map[string]Seen
	PreDeploy *PreDeployed // nil: its pod has reported nothing yet
	Gate      *GateAnswer  // of the call that the decision before this one asked for; nil: none was made
}

// Seen is one controller as it was read.
type Seen struct {
	RC rc.RC
	// Status is what its owner reports, nil if there is none. It counts only if it is of this generation and of this epoch.
	Status *rc.Status
}

// HasPods reports whether the controller has pods, or may get some.
func (s *Seen) HasPods() bool {
	return s.RC.Desired() > 0 || s.Status != nil && s.Status.Placed+s.Status.Stopping+s.Status.Lost > 0
}

// PreDeployed is what became of the pod of the controller that runs once.
type PreDeployed struct {
	Finished bool
	Exit     int    // code of its process
	Lost     bool   // its node is gone: nobody knows how it ended, and it does not run twice
	Failed   string // why it cannot run at all, such as a refused artifact, or how it ended other than with an exit code; "" otherwise
	Tail     string // end of its log
}

// GateCall is a webhook that the owner calls, and whose answer is in Observed of the next decision. A call whose answer was lost, because the owner
// died, is made again: webhooks are asked at least once.
type GateCall struct {
	Hook    Hook
	Timeout time.Duration
	Phase   Phase // BeforeStage or AfterStage
	Index   int   // within the list of the phase
	Stage   int
	Stages  int
}

// GateAnswer is what came of a GateCall.
type GateAnswer struct {
	Phase Phase
	Index int
	Stage int
	Error string // "" if the webhook agreed
}

// Decision is what the owner writes, in one transaction, and does next. Where nothing in it differs from what was read, it writes nothing.
type Decision struct {
	Record Record
	Write  bool     // Record differs from what was read
	RCs    []rc.RC  // controllers that change, each with its next generation
	Delete []string // ids of controllers of RCs, or of the pre-deploy controller, that get the deletion mark; those of RCs have it already
	Ended  bool     // the record is removed by the transaction that audits its outcome
	// InEffect is, once it has ended, the revision whose pods make the service: the new one, or the one that it was rolled back to. 0: none alone, as after
	// an abort; the next deploy is not up to date then.
	InEffect int64
	Audit    []string // a sentence each
	Alert    string   // "" for none
	Gate     *GateCall
	Again    time.Duration // look again after this, even if no bell rings; 0: only a bell
}

// Start is what a rollout is made from.
type Start struct {
	ID      string // ULID of the new rollout
	Service string
	By      string
	Now     time.Time
	Epoch   string
	Knobs   Knobs
	New     rc.RC  // the new controller with its final counts, or in place the changed record of the one there is
	Old     []Seen // all other controllers of the service that there are; in place: the one that New changes, as it is
	// InEffect is the revision that deployments/<service>/spec names; 0 where none is, as after an abort: the one with the most pods counts then.
	InEffect int64
	// OnlyInPlace is why no pod of the service can have a successor elsewhere, such as "it has volumes"; "" if they can. A static controller needs no mention.
	OnlyInPlace string
	// Nodes is how many pods New is to have where it has one on each node and the old controller has counts, and Right
	// how many pods are where a change of mode asks for them and run what it asks for. Both are for what people are told
	// beforehand: the rollout counts for itself. 0: not known.
	Nodes, Right int
	SkipGates    bool
	PreDeploy    *PreDeploy // its Until is set by Begin
}

// Started is what the transaction that makes a rollout writes.
type Started struct {
	Record Record
	RCs    []rc.RC  // the new controller with its first counts, and the others with their bounds
	Delete []string // controllers that only the replaced rollout needed: they get the deletion mark
	Audit  []string
}

// InPlace returns what limits the upgrade in place that was started, nil where there is none.
func (s *Started) InPlace() *rc.InPlace {
	up := s.Record.Upward()
	if up == nil || s.Record.Strategy != InPlaceStrategy {
		return nil
	}
	if r := field.Find(s.RCs, func(r *rc.RC) bool { return r.ID == up.RC }); r != nil {
		return r.InPlace
	}
	return nil
}
