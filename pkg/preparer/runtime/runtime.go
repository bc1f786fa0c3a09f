// Package runtime is the seam between the preparer and whatever runs processes on its node: what is kept running, programs that run
// once, and commands beside what runs. A runtime outlives the preparer: processes keep their pids when the preparer restarts.
//
// The preparer says what is wanted, down to who a process is and what it may take. How a node does that, as with cgroups or mounts, is
// the runtime's.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// Runtime runs processes. All methods are safe for concurrent use. An error means that the runtime could not be
// reached or refused; it never means that a process stopped.
type Runtime interface {
	// Start makes the process run, and keep running as its restart policy says. It is idempotent: the same Spec again
	// changes nothing, also when that process has exited. The same ID with a different Spec is refused with ErrExists.
	Start(ctx context.Context, spec Spec) error
	// Stop asks the process and its whole group to end with its stop signal, kills the group after spec.StopGrace, and
	// returns when nothing of it runs any more, nor of a command that Exec runs beside it, whichever preparer asked for that. It is
	// idempotent; an unknown ID counts as stopped.
	Stop(ctx context.Context, id string) error
	// Restart ends one run of a process as Stop does, and starts the process again as if it had crashed, with the pause
	// that follows from its short runs. It returns when that is under way, and may be repeated. It changes nothing for a
	// run that is over, or of a process that is stopped or about to be. It is refused with ErrInvalid where the policy is
	// Never, and with ErrTooOld.
	Restart(ctx context.Context, ask RestartRequest) error
	// Relimit holds a process to other limits of CPU and memory, now if it runs, and from its next start on. It is
	// idempotent. Memory is not lowered below what is used. It is refused with ErrKeepsLimits, where the process has the
	// limits that it had, and with ErrTooOld.
	Relimit(ctx context.Context, to LimitRequest) error
	// Remove forgets a stopped or exited process. It refuses one that runs or waits to; an unknown ID is fine.
	Remove(ctx context.Context, id string) error
	// Watch returns the state of every process as soon as anything differs from the given cursor (zero: at once),
	// or when the context ends. The cursor that comes back goes into the next call.
	Watch(ctx context.Context, cursor uint64) ([]Status, uint64, error)
	// Watchdogs reports whether a process that is started now has the Watchdog of its Spec, as far as the latest answer to Watch says.
	Watchdogs() bool
	// Ping returns nil once the runtime has answered, and could have written what it does to its disk. It waits for no
	// other call, however long those rightly take. It has no limit of its own: a runtime that stands still answers when it
	// goes on.
	Ping(ctx context.Context) error

	// RunOnce runs a program to its end and returns how it ended. When ctx ends first, everything of it is killed and the cause of
	// ctx's end comes back. Nothing of the program runs when RunOnce returns, unless that is ErrSurvived, nor after the death of the
	// preparer.
	RunOnce(ctx context.Context, run Once, streams Streams) (Exit, error)
	// Exec is RunOnce for a command beside a supervised process: with its environment, directory and isolation. It is refused with
	// ErrNotRunning for an ID that is unknown, and for a process that is stopped or about to be. Stop ends the command.
	Exec(ctx context.Context, id string, command []string, streams Streams) (Exit, error)
}

// Errors that every runtime returns and a caller may test for.
var (
	// ErrExists is returned by Start for an ID that is in use with another Spec.
	ErrExists = errors.New("a process with this id and another specification exists")
	// ErrInvalid is returned for a specification or a command that cannot be run; nothing was changed.
	ErrInvalid = errors.New("not a valid process specification")
	// ErrNotStopped is returned by Remove for a process that is not stopped.
	ErrNotStopped = errors.New("the process is not stopped")
	// ErrNotRunning is returned by Exec where there is nothing to run a command beside.
	ErrNotRunning = errors.New("the process is stopped, or about to be")
	// ErrKeepsLimits is returned by Relimit for a process whose limits cannot change while it runs: it has no cgroup, it
	// uses more memory than the new limit leaves, or the kernel refused.
	ErrKeepsLimits = errors.New("its limits cannot be changed while it runs")
	// ErrTooOld is returned by Restart and Relimit where what runs the processes is older than that request. Nothing was
	// changed.
	ErrTooOld = errors.New("the node's supervisor is too old for this")
	// ErrNotStarted is returned by RunOnce and Exec when the program could not be executed.
	ErrNotStarted = errors.New("not started")
	// ErrNoProgram is an ErrNotStarted: there is no file of the program's name. A script whose interpreter is missing
	// is there.
	ErrNoProgram = fmt.Errorf("%w: no such program", ErrNotStarted)
	// ErrSurvived is in what RunOnce, Exec and Stop return when something did not end although it was killed.
	ErrSurvived = errors.New("killed, and not dead yet")
)

// Spec is one process to supervise, and what keeps it from the rest of the node.
type Spec struct {
	Process

	Isolation *Isolation `json:"isolation,omitempty"` // nil: it runs as the supervisor does
}

// Process is one process to supervise.
type Process struct {
	ID        string        `json:"id"`         // unique on the node; letters, digits, '-', '_' and '.' only
	Pod       pod.Identity  `json:"pod"`        // what it belongs to; given back in Status
	Revision  int64         `json:"revision"`   // of the intent; given back in Status
	Name      string        `json:"name"`       // of the launchable
	Command   []string      `json:"command"`    // absolute path of the program, then its arguments
	Env       []string      `json:"env"`        // KEY=value; nothing else is inherited
	Dir       string        `json:"dir"`        // working directory
	LogPath   string        `json:"log_path"`   // stdout and stderr are appended here
	LogBytes  int64         `json:"log_bytes"`  // the file is rotated when it is larger than this
	LogKeep   int           `json:"log_keep"`   // rotated files kept
	StopGrace time.Duration `json:"stop_grace"` // between the stop signal and SIGKILL

	StopSignal string  `json:"stop_signal,omitempty"` // such as SIGINT; empty: SIGTERM
	Restart    Restart `json:"restart,omitzero"`
	// StartSuspended: when the machine was restarted the process is Stopped until somebody starts it again.
	StartSuspended bool `json:"hold_after_boot,omitempty"`
	// Watchdog stops the process, whatever becomes of the preparer; nil: only who asks for it does. A runtime that knows none gives it back
	// in Status without one.
	Watchdog *Watchdog `json:"watchdog,omitempty"`
}

// Watchdog is a note that somebody has to renew so that a process runs on. When the moment in it is longer ago than Timeout, the process is
// stopped as Stop does it, and is Stopped until it is started again. A note that is missing, unreadable, or not of this start of the machine
// is as one that was not renewed: the latest that was read counts, and before the first one the time when the runtime was told to start the
// process, or took it over. A runtime that takes over one that does not run does not start it.
type Watchdog struct {
	Note    string        `json:"note"` // absolute path of the file; see proc.WriteNote
	Timeout time.Duration `json:"timeout"`
}

// Restart says what follows the end of a process.
type Restart struct {
	Policy RestartPolicy `json:"policy,omitempty"` // empty: Always
	Min    time.Duration `json:"min,omitempty"`    // before the first restart; zero: the runtime's default
	Max    time.Duration `json:"max,omitempty"`    // bound of its doubling; zero: the runtime's default
	// Stable is how long a run lasts after which the pauses begin with Min again, unless the runtime's default is longer.
	Stable time.Duration `json:"stable,omitempty"`
}

// RestartRequest asks for the end of one run of a process, and for the next.
type RestartRequest struct {
	ID        string    `json:"id"`
	PID       int       `json:"pid"` // this and the next: which run, as Status has it
	StartedAt time.Time `json:"started_at"`
	Reason    string    `json:"reason"` // for its LastExit
	// Stable is how long this run and the next must last so as not to be short ones, unless what counts otherwise is
	// longer.
	Stable time.Duration `json:"stable,omitempty"`
}

// LimitRequest asks for other limits of a process.
type LimitRequest struct {
	ID     string `json:"id"`
	CPU    int64  `json:"cpu"`    // thousandths of a core; zero: none
	Memory int64  `json:"memory"` // bytes; zero: none
}

// RestartPolicy says which ends of a process are followed by a start. A node that goes down ends its processes in a way
// that nobody is told of: after it has booted, what ran starts again under Always and OnFailure, and has exited under
// Never. What had exited before stays so.
type RestartPolicy = manifest.RestartPolicy

// The restart policies.
const (
	Always    = manifest.RestartAlways
	OnFailure = manifest.RestartOnFailure
	Never     = manifest.RestartNever
)

// Isolation is what is wanted to keep a process from the rest of the node: a user, limits, a /tmp of its own. A runtime that cannot do
// what is asked does not start the process, but for limits that the node cannot hold.
type Isolation = confine.Isolation

// Phase is where a process is in its life.
type Phase string

// The phases of a supervised process.
const (
	Starting Phase = "starting"
	Running  Phase = "running"
	Backoff  Phase = "backoff" // ended, waits for its next start
	Exited   Phase = "exited"  // ended, and its restart policy leaves it at that
	Stopping Phase = "stopping"
	Stopped  Phase = "stopped" // asked to stop, and nothing of it runs
	Unknown  Phase = "unknown" // what was recorded of it cannot be read; its spec has nothing but the ID
)

// Status is what a runtime knows about one process.
type Status struct {
	Spec Spec `json:"spec"`
	State
}

// State is how a process is.
type State struct {
	Phase     Phase     `json:"phase"`
	PID       int       `json:"pid,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	Restarts  int       `json:"restarts"`
	// ShortRuns is how many runs in a row, attempts to start included, were over before they were stable. It is zero again as soon
	// as one is.
	ShortRuns int       `json:"short_runs,omitempty"`
	LastExit  *pod.Exit `json:"last_exit,omitempty"`
	Message   string    `json:"message,omitempty"` // why it does not run, such as an exec error
}
