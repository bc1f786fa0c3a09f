// Package runc calls the program runc, which makes containers by the OCI runtime specification. Package container makes
// the configuration of a container. A container is created first, started later, and deleted after its end. runc does
// not stay: the first process of a container is a child of the caller's subreaper as soon as Create returns.
//
// # What the caller must know
//
// These are facts about Debian's runc 1.1.5, which the tests of this package show:
//
//   - The process's output goes to the files that the caller gives. Without a user namespace, Create makes the user of
//     the process their owner. The caller can give them back to root before Start; if their group is the process's and
//     may write, an image's link to /dev/stdout still works.
//   - With a user namespace, runc opens the container's files as the container's root. Each directory above them must
//     let other users pass (mode 0711).
//   - runc moves the process into the cgroup of that path in each hierarchy of cgroup v1, and in cgroup v2 if it is
//     mounted at /sys/fs/cgroup/unified. It makes missing cgroups, and removes only the last one of the path.
//   - The kill of the cgroup in v2 (isolate.Kill) ends all processes of the container. runc is not needed for that, and
//     then reports the container as stopped.
//   - A runc that is killed before it has written its state leaves cgroups that runc delete does not know. Delete
//     removes them. The interrupted process ends by itself, because its pipe to runc closes.
//   - The process inherits runc's nice value and limits, with one difference: runc raises the soft limit of open files
//     to the hard limit.
//   - The tests need root.
package runc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Errors that a caller can test for.
var (
	// ErrNotFound is returned if runc knows no container of this id.
	ErrNotFound = errors.New("runc knows no container of this id")
	// ErrTooOld is returned by Version for a runc before Oldest.
	ErrTooOld = errors.New("this runc is too old")
	// ErrTimeout is returned if a call takes longer than its time limit. runc was killed, and what it was asked for may
	// be done or not.
	ErrTimeout = errors.New("it took too long, and was given up")
)

// The defaults of a Config.
const (
	DefaultProgram = "runc"
	DefaultTimeout = 30 * time.Second
)

// Limits of what is read from runc, in bytes.
const (
	maxOutput  = 256 << 10 // state has the annotations of the configuration; there are none
	maxMessage = 2 << 10   // of an error
)

// Config is how runc is called.
type Config struct {
	Program string        // name or path; empty: DefaultProgram
	State   string        // absolute path of the directory for runc's state; below /run, so that a boot empties it
	Timeout time.Duration // of one call; zero: DefaultTimeout
}

// Runc calls runc. It is safe for concurrent use with different ids.
type Runc struct {
	program, state string
	timeout        time.Duration
}

// New finds runc and makes the directory of its state.
func New(cfg Config) (*Runc, error) {
	r := &Runc{program: cfg.Program, state: cfg.State, timeout: cfg.Timeout}
	if r.program == "" {
		r.program = DefaultProgram
	}
	if r.timeout == 0 {
		r.timeout = DefaultTimeout
	}
	if !filepath.IsAbs(r.state) {
		return nil, fmt.Errorf("runc: state directory %q is not valid; allowed: an absolute path", r.state)
	}
	var err error
	if r.program, err = exec.LookPath(r.program); err == nil {
		r.program, err = filepath.Abs(r.program)
	}
	if err != nil {
		return nil, fmt.Errorf("find runc: %w", err)
	}
	if err := os.MkdirAll(r.state, 0o700); err != nil {
		return nil, fmt.Errorf("make runc's state directory: %w", err)
	}
	return r, nil
}

// ConfigFile is the name of a container's configuration in its bundle.
const ConfigFile = "config.json"

// WriteBundle makes the bundle directory of a container if it is missing, and writes the configuration into it. Other
// users cannot read the configuration, because its variables may be secrets. They can pass the directory: with a user
// namespace, runc enters it as the container's root.
func WriteBundle(dir string, spec *specs.Spec) error {
	data, err := json.Marshal(spec)
	if err == nil {
		err = os.MkdirAll(dir, 0o711)
	}
	if err == nil {
		err = os.Chmod(dir, 0o711) // independent of the umask
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ConfigFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write bundle %s: %w", dir, err)
	}
	return nil
}

// Status is what runc knows about a container.
type Status string

// The states of a container.
const (
	Creating Status = "creating"
	Created  Status = "created" // its process waits for Start
	Running  Status = "running"
	Paused   Status = "paused"
	Stopped  Status = "stopped"
)

// State is the answer of Runc.State.
type State struct {
	ID     string `json:"id"`
	Status Status `json:"status"`
	PID    int    `json:"pid"` // of the first process; 0: stopped
	Bundle string `json:"bundle"`
}

// Create makes a container from a bundle. Its first process exists, waits for Start, and has these files as its
// descriptors 0 to 2. After an error, a part of the container may exist until Delete.
func (r *Runc) Create(ctx context.Context, id, bundle string, stdio [3]*os.File) error {
	_, err := r.call(ctx, stdio[:], "create", "--bundle", bundle, id)
	return err
}

// Creation is a call of runc create that the caller makes itself, for example in a mount namespace of its own.
type Creation struct {
	Command, Env []string
	bundle       string
}

// Names of files in the bundle, for what runc reports about a Creation.
const (
	pidFile     = "runc.pid"
	messageFile = "runc.log"
)

// Creation returns the call that Create would make. The bundle must be new. What the comment of Create says holds.
func (r *Runc) Creation(id, bundle string) *Creation {
	return &Creation{
		Command: []string{
			r.program, "--root", r.state, "--log", filepath.Join(bundle, messageFile), "--log-format", "json",
			"create", "--bundle", bundle, "--pid-file", filepath.Join(bundle, pidFile), id,
		},
		Env: env(), bundle: bundle,
	}
}

// PID returns the first process of the container, after the call has succeeded.
func (c *Creation) PID() (int, error) {
	text, err := os.ReadFile(filepath.Join(c.bundle, pidFile))
	if err != nil {
		return 0, fmt.Errorf("read the pid from runc: %w", err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("read the pid from runc: %q is not valid; allowed: a number above 0",
			field.CutBytes(string(text), maxMessage))
	}
	return pid, nil
}

// Failure returns runc's error after the call has failed. how is how runc ended.
func (c *Creation) Failure(how string) error {
	said := ""
	if log, err := os.Open(filepath.Join(c.bundle, messageFile)); err == nil {
		said = message(log)
		_ = log.Close()
	}
	return fmt.Errorf("runc create: %s: %s", how, cmp.Or(field.CutBytes(said, maxMessage), "no text"))
}

// Start lets the first process of a created container become its program. It can return ErrNotFound.
func (r *Runc) Start(ctx context.Context, id string) error {
	_, err := r.call(ctx, nil, "start", id)
	return err
}

// State returns the state of a container. It can return ErrNotFound.
func (r *Runc) State(ctx context.Context, id string) (State, error) {
	out, err := r.call(ctx, nil, "state", id)
	if err != nil {
		return State{}, err
	}
	var state State
	if err := json.Unmarshal(out, &state); err != nil || state.ID != id || state.PID < 0 {
		return State{}, fmt.Errorf("runc state %s: answer %q is not valid; allowed: JSON with this id and a pid", id,
			field.CutBytes(string(out), maxMessage))
	}
	return state, nil
}

// Delete kills all processes of a container and removes it, with its cgroups in all hierarchies. cgroup is the path
// that the configuration has. For an unknown id, and for one whose creation was interrupted, it kills and removes what
// is in the cgroups. If runc fails, it does that too, and returns runc's error. It can be called again. It does not
// remove the bundle.
func (r *Runc) Delete(ctx context.Context, id, cgroup string) error {
	_, err := r.call(ctx, nil, "delete", "--force", id)
	if cgroupErr := ClearCgroups(ctx, cgroup, r.timeout); cgroupErr != nil {
		err = errors.Join(err, fmt.Errorf("delete container %s: %w", id, cgroupErr))
	}
	return err
}

// ClearCgroups kills and removes, within a time limit, what is in a container's cgroups in all hierarchies. It is the
// part of Delete that needs no runc.
func ClearCgroups(ctx context.Context, cgroup string, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrTimeout)
	defer cancel()
	return clearCgroups(ctx, cgroup)
}

// maxID is the longest id. The id is the name of a directory and of a cgroup.
const maxID = 200

var validID = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// call runs runc. Its last argument is the id of a container. With stdio, the container gets these files, and runc's
// own output goes there too. runc writes its errors into a file of this call besides.
func (r *Runc) call(ctx context.Context, stdio []*os.File, command ...string) ([]byte, error) {
	what, id := "runc "+command[0], command[len(command)-1]
	if len(id) > maxID || !validID.MatchString(id) {
		return nil, fmt.Errorf("%s: id %q is not valid; allowed: 1 to %d letters, digits, '_', '-' and '.', not "+
			"starting with '-' or '.'", what, id, maxID)
	}
	log, err := os.CreateTemp(r.state, ".log-*")
	if err != nil {
		return nil, fmt.Errorf("%s %s: make a file for runc's errors: %w", what, id, err)
	}
	defer func() { _, _ = log.Close(), os.Remove(log.Name()) }()
	args := append([]string{"--root", r.state, "--log", log.Name(), "--log-format", "json"}, command...)
	out, stderr, err := r.run(ctx, stdio, args)
	if err == nil {
		return out, nil
	}
	said := cmp.Or(message(log), stderr)
	switch {
	case said == notFound:
		err = ErrNotFound
	case said != "":
		err = fmt.Errorf("%w: %s", err, field.CutBytes(said, maxMessage))
	}
	return nil, fmt.Errorf("%s %s: %w", what, id, err)
}

// notFound is runc's error for an unknown id (libcontainer, ErrNotExist). Other errors can have this text as a part,
// because an image chooses the names of its programs.
const notFound = "container does not exist"

// message returns runc's last error in a file of its log, or nothing.
func message(log *os.File) (said string) {
	data := make([]byte, maxOutput)
	n, _ := log.ReadAt(data, 0) // the file ends before, and then err is io.EOF
	for line := range bytes.Lines(data[:n]) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			said = entry.Msg
		}
	}
	return said
}

// run runs the program in a process group of its own, which is killed when the context or the time limit ends. It
// returns the outputs, unless the files of stdio get them.
func (r *Runc) run(ctx context.Context, stdio []*os.File, args []string) (out []byte, stderr string, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, r.timeout, ErrTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, r.program, args...)
	cmd.Env = env()
	cmd.Dir = "/"
	output, errs := &bounded{left: maxOutput}, &bounded{left: maxMessage}
	if stdio != nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio[0], stdio[1], stdio[2]
	} else {
		cmd.Stdout, cmd.Stderr = output, errs
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // if a process that was not killed has the output open
	switch err := cmd.Run(); {
	case err != nil && limited.Err() != nil:
		return nil, "", context.Cause(limited)
	case err != nil:
		return nil, strings.TrimSpace(errs.data.String()), err
	case output.cut:
		return nil, "", fmt.Errorf("its output has more than %d bytes", maxOutput)
	}
	return output.data.Bytes(), "", nil
}

// env is the environment of runc.
func env() []string { return []string{"PATH=" + os.Getenv("PATH")} }

// bounded keeps the beginning of what is written to it.
type bounded struct {
	data bytes.Buffer
	left int
	cut  bool
}

var _ io.Writer = (*bounded)(nil)

func (b *bounded) Write(p []byte) (int, error) {
	part := p[:min(len(p), b.left)]
	b.left -= len(part)
	b.cut = b.cut || len(part) < len(p)
	_, _ = b.data.Write(part)
	return len(p), nil
}
