package rollout

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Observed is what the owner has read before it calls Decide.
type Observed struct {
	Now time.Time
	// Watched is for how long this process has seen the record's present ProgressAt, by a monotonic clock; nil: not
	// known. A stage times out only after this time, too, because the clock of Now may be wrong.
	Watched *time.Duration
	Epoch   string // of the cluster
	Breaker string // why the breaker is tripped, "" if it is not
	// Revisions are the controllers of the record's revisions by id. One that does not exist has an empty RC.ID. One
	// that cannot be read is missing, and the rollout changes nothing.
	Revisions map[string]Seen
	PreDeploy *PreDeployed // nil: its pod has reported nothing yet
	Gate      *GateAnswer  // of the call that the previous decision asked for; nil: no answer yet
}

// Seen is one controller as it was read.
type Seen struct {
	RC rc.RC
	// Status is its owner's report, nil for none. Decide relies on it only at the present generation and epoch.
	Status *rc.Status
}

// HasPods reports whether the controller has pods, or may get some.
func (s *Seen) HasPods() bool {
	return s.RC.Desired() > 0 || s.Status != nil && s.Status.Placed+s.Status.Stopping+s.Status.Lost > 0
}

// PreDeployed is the outcome of the pod that runs once.
type PreDeployed struct {
	Finished bool
	Exit     int  // code of its process
	Lost     bool // its node is lost: its outcome is unknown, and it does not run twice
	// Failed is why the pod cannot run at all, or how it ended without an exit code; else "".
	Failed string
	Tail   string // end of its log
}

// GateCall is a webhook that the owner calls. If the owner dies before the answer, the next owner calls again.
type GateCall struct {
	Hook    Hook
	Timeout time.Duration
	Phase   Phase // BeforeStage or AfterStage
	Index   int   // within the list of the phase
	Stage   int
	Stages  int
}

// GateAnswer answers a GateCall.
type GateAnswer struct {
	Phase Phase
	Index int
	Stage int
	Error string // "" if the webhook agreed
}

// Decision is what the owner writes in one transaction, if it differs from what was read, and what it does next.
type Decision struct {
	Record Record
	Write  bool    // Record differs from what was read
	RCs    []rc.RC // controllers that change, each with its next generation
	// Delete has the ids of deleted controllers: controllers in RCs that have DeletedAt now, and the controller of
	// pre_deploy.
	Delete []string
	Ended  bool // the transaction that audits the outcome removes the record
	// InEffect is the revision whose pods make up the service, once the rollout has ended. 0: there is none, for
	// example after an abort. Then the controllers are left as they are.
	InEffect int64
	Audit    []string // a sentence each
	Alert    string   // "" for none
	Gate     *GateCall
	Again    time.Duration // look again after this, even if no bell rings; 0: only after a bell
}

// Start is the input of a new rollout.
type Start struct {
	ID      string // ULID of the new rollout
	Service string
	By      string
	Now     time.Time
	Epoch   string
	Knobs   Knobs
	New     rc.RC  // the new controller with its final counts; in place: the existing controller with its changes
	Old     []Seen // all other controllers of the service; in place: the existing controller before its changes
	// InEffect is the revision in deployments/<service>/spec, 0 for none: then the one with the most pods is used.
	InEffect int64
	// OnlyInPlace is why no pod of the service can have a successor elsewhere, such as "it has volumes"; "" if they
	// can. Begin itself looks at the controllers.
	OnlyInPlace string
	// Nodes is how many pods New will have, if the mode changes from counts to each node. Correct is how many pods are
	// already where the new mode wants them, with the new manifest. Both are for forecasts; 0: not known.
	Nodes, Correct int
	SkipGates      bool
	PreDeploy      *PreDeploy // its Until is set by Begin
}

// Started is what the transaction that begins a rollout writes.
type Started struct {
	Record Record
	RCs    []rc.RC  // the new controller with its first counts, and the others with their limits
	Delete []string // ids of deleted controllers: only the replaced rollout needed them
	Audit  []string
}

// InPlace returns the limits of the upgrade in place that was started, nil for none.
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
