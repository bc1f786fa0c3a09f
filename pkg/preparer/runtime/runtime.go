// Package runtime is the interface between the preparer and the supervisor, which runs the node's processes and
// outlives the preparer. The preparer specifies what must run, as which user and with which limits. The runtime decides
// how, for example with cgroups and mounts.
package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// Runtime runs processes. All methods are safe for concurrent use. An error means that the runtime refused the call, or
// that the caller could not reach the runtime. It never means that a process stopped.
type Runtime interface {
	// Start makes the process run. It is idempotent: a second call with the same Spec changes nothing, even if the
	// process has exited. If the ID is in use with another Spec, Start returns ErrExists. For a Spec with a Container,
	// it can return ErrTooOld.
	Start(ctx context.Context, spec Spec) error
	// Stop sends the stop signal to the process group, kills the group after spec.StopGrace, and returns when no
	// process of the group runs. It also ends commands of Exec, even of an earlier preparer. It is idempotent. For an
	// unknown ID it returns nil.
	Stop(ctx context.Context, id string) error
	// Restart ends one run in the same way as Stop, and the process is started again as after a crash. It returns when
	// the restart is under way, and can be called again. If the run is over, or the process is stopped or being
	// stopped, it changes nothing. Errors to test for: ErrTooOld, and ErrInvalid if the policy is Never.
	Restart(ctx context.Context, ask RestartRequest) error
	// Relimit changes a process's limits of CPU and memory, at once and for its next starts. It is idempotent. Errors
	// to test for: ErrTooOld, and ErrKeepsLimits if nothing has changed.
	Relimit(ctx context.Context, to LimitRequest) error
	// Remove forgets a stopped or exited process. For another process it returns ErrNotStopped, for an unknown ID nil.
	Remove(ctx context.Context, id string) error
	// Watch returns the state of all processes, and a cursor for the next call, as soon as any state differs from the
	// state at the given cursor. With cursor zero it returns at once. It also returns when the context ends.
	Watch(ctx context.Context, cursor uint64) ([]Status, uint64, error)
	// Features returns what the runtime supports, according to the latest answer to Watch.
	Features() Features
	// Ping returns nil when the runtime has answered and can write to its disk. It has no time limit, and does not wait
	// for other calls, because some take long although nothing is wrong.
	Ping(ctx context.Context) error

	// RunOnce runs a program to its end. If ctx ends first, RunOnce kills all processes of the program and returns the
	// cause. When it returns, no process of the program runs, with two exceptions: the error is ErrSurvived, or
	// something else killed the guard of the program. No process of the program outlives the preparer.
	RunOnce(ctx context.Context, run Once, streams Streams) (Exit, error)
	// Exec runs a command in the same way as RunOnce, with the environment, directory and isolation of a supervised
	// process. If the ID is unknown, or the process is stopped or being stopped, it returns ErrNotRunning.
	Exec(ctx context.Context, id string, command []string, streams Streams) (Exit, error)
}

// Features are the parts of a Spec that older runtimes do not support.
type Features struct {
	Watchdogs  bool // Spec.Watchdog
	Containers bool // Spec.Container
}

// Errors that a caller can test for.
var (
	// ErrExists is returned by Start.
	ErrExists = errors.New("a process with this id and another specification exists")
	// ErrInvalid means that a specification or a command cannot run. Nothing has changed.
	ErrInvalid = errors.New("not a valid process specification")
	// ErrNotStopped is returned by Remove.
	ErrNotStopped = errors.New("the process is not stopped")
	// ErrNotRunning is returned by Exec.
	ErrNotRunning = errors.New("the process is stopped, or about to be")
	// ErrKeepsLimits is returned by Relimit: the process has no cgroup, or it uses too much memory for the new limit,
	// or the kernel has refused.
	ErrKeepsLimits = errors.New("its limits cannot be changed while it runs")
	// ErrTooOld means that the supervisor is so old that it does not know Restart, Relimit or containers. Nothing has
	// changed.
	ErrTooOld = errors.New("the node's supervisor is too old for this")
	// ErrNotStarted is returned by RunOnce and Exec when the program could not be executed.
	ErrNotStarted = errors.New("not started")
	// ErrNoProgram is an ErrNotStarted: no file has the program's name. A missing interpreter of a script is another
	// ErrNotStarted.
	ErrNoProgram = fmt.Errorf("%w: no such program", ErrNotStarted)
	// ErrSurvived means that a process was killed and has not ended in time.
	ErrSurvived = errors.New("killed, and not dead yet")
)

// Spec is a process with its isolation from the rest of the node.
type Spec struct {
	Process

	Isolation *Isolation `json:"isolation,omitempty"` // nil: the process runs as the supervisor's user, without limits
	Container *Container `json:"container,omitempty"` // nil: the process sees the node's files
}

// Container is what the runtime needs to run a process in a container. Process.Command, Env and Dir are then only for
// people; Config has what runs. Isolation must be there. It has only the limits, and its user is not used. The stop
// signal goes to the first process of the container only.
type Container struct {
	// Config is a configuration of the OCI runtime specification. Its root is Dir/rootfs. The runtime sets its cgroup
	// path.
	Config json.RawMessage `json:"config"`
	// Dir is a directory for this process alone. The runtime makes it anew at each start, with these entries: rootfs
	// (where the layers are mounted), written (what the container writes; only root can enter it), hosts and
	// resolv.conf (copies of the node's files), scratch/0, scratch/1, ... (one for each volume of the image). All
	// directories above Dir must let other users pass.
	Dir    string   `json:"dir"`
	Layers []string `json:"layers"` // directories, the highest first
	// IDs is the block of numbers as which the container's users appear on the node; nil: the numbers are not changed.
	IDs     *IDs `json:"ids,omitempty"`
	UID     int  `json:"uid"`     // owner of the directories in scratch, as a number of the node
	GID     int  `json:"gid"`     // their group
	Scratch int  `json:"scratch"` // how many directories scratch has
}

// IDs is a block of user and group numbers of the node: the number n of a container is the number First+n.
type IDs struct {
	First uint32 `json:"first"`
	Size  uint32 `json:"size"`
}

// Process is one process to supervise.
type Process struct {
	ID        string        `json:"id"`         // unique on the node; letters, digits, '-', '_' and '.' only
	Pod       pod.Identity  `json:"pod"`        // the pod of the process; returned in Status
	Revision  int64         `json:"revision"`   // of the intent; returned in Status
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
	// StartSuspended: after a restart of the machine, the process is Stopped until Start is called again.
	StartSuspended bool `json:"hold_after_boot,omitempty"`
	// Watchdog is nil for no watchdog. If a runtime does not support watchdogs, the Spec in its Status has none.
	Watchdog *Watchdog `json:"watchdog,omitempty"`
}

// Watchdog stops the process in the same way as Stop when the time in a note on the disk is older than Timeout. The
// process is then Stopped until Start is called again. If the note is missing, unreadable, or from before the machine's
// last boot, the latest valid time counts. Before the first valid time, it is the time when the runtime was asked to
// start the process, or took it over. A process with a Watchdog that does not run at a takeover is not started.
type Watchdog struct {
	Note    string        `json:"note"` // absolute path of the file; see proc.WriteNote
	Timeout time.Duration `json:"timeout"`
}

// Restart is what the runtime does when a process ends.
type Restart struct {
	Policy RestartPolicy `json:"policy,omitempty"` // empty: Always
	Min    time.Duration `json:"min,omitempty"`    // before the first restart; zero: the runtime's default
	Max    time.Duration `json:"max,omitempty"`    // the pause doubles up to Max; zero: the runtime's default
	// Stable is how long a run must last so that it is not a short run. If the runtime's default is longer, it is used.
	Stable time.Duration `json:"stable,omitempty"`
}

// RestartRequest asks for the end of one run and the start of the next.
type RestartRequest struct {
	ID        string    `json:"id"`
	PID       int       `json:"pid"` // with StartedAt: which run to end, as in Status
	StartedAt time.Time `json:"started_at"`
	Reason    string    `json:"reason"` // Reason of the LastExit
	// Stable is Restart.Stable for this run and the next run.
	Stable time.Duration `json:"stable,omitempty"`
}

// LimitRequest asks for new limits of a process.
type LimitRequest struct {
	ID     string `json:"id"`
	CPU    int64  `json:"cpu"`    // thousandths of a core; zero: none
	Memory int64  `json:"memory"` // bytes; zero: none
}

// RestartPolicy decides after which ends a process is started again. A process that ran when the machine went down
// starts again after the boot under Always and OnFailure, and counts as exited under Never.
type RestartPolicy = manifest.RestartPolicy

// The restart policies.
const (
	Always    = manifest.RestartAlways
	OnFailure = manifest.RestartOnFailure
	Never     = manifest.RestartNever
)

// Isolation separates a process from the rest of the node. If the runtime cannot apply it, the process does not start.
// But the runtime ignores limits that the node cannot enforce.
type Isolation = confine.Isolation

// Phase is where a process is in its life.
type Phase string

// The phases of a supervised process.
const (
	Starting Phase = "starting"
	Running  Phase = "running"
	Backoff  Phase = "backoff" // ended, and waits for its next start
	Exited   Phase = "exited"  // ended, and its restart policy does not start it again
	Stopping Phase = "stopping"
	Stopped  Phase = "stopped" // was asked to stop, and no process of it runs
	Unknown  Phase = "unknown" // the runtime cannot read its record; Spec has only the ID
)

// Status is what a runtime knows about one process.
type Status struct {
	Spec Spec `json:"spec"`
	State
}

// State is the current state of a process.
type State struct {
	Phase     Phase     `json:"phase"`
	PID       int       `json:"pid,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	Restarts  int       `json:"restarts"`
	// ShortRuns is how many runs in a row were short (see Restart.Stable), including failed starts.
	ShortRuns int       `json:"short_runs,omitempty"`
	LastExit  *pod.Exit `json:"last_exit,omitempty"`
	Message   string    `json:"message,omitempty"` // why the process does not run, such as an exec error
}
