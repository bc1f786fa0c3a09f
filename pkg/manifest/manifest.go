// Package manifest describes what a pod runs: its processes, where their files come from, its ports and its health
// check. A manifest is addressed by the SHA-256 of its canonical JSON, so it never changes under a name.
package manifest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Version is the only format version that this build reads and writes.
const Version = 1

// Defaults for fields that a manifest leaves out. They are applied on use, never written into the manifest, so
// that a digest depends on nothing but what the user wrote.
const (
	DefaultStopGrace      = 10 * time.Second
	DefaultHealthInterval = 2 * time.Second
	DefaultHealthTimeout  = 2 * time.Second
	DefaultHookTimeout    = time.Minute
	DefaultBackoffMin     = 500 * time.Millisecond
	DefaultBackoffMax     = time.Minute
	DefaultPIDs           = 4096 // processes and threads of one process with all that it starts
	DefaultMinReady       = 10 * time.Second
	DefaultDrain          = time.Second
	DefaultCommand        = "bin/launch" // of a tar artifact
	DefaultStopSignal     = "SIGTERM"
)

// The kinds of artifacts.
const (
	ArtifactTar  = "tar"  // a gzip-compressed tar archive
	ArtifactExec = "exec" // a program that is on the node already
)

// Manifest is one pod: processes that live and die together on one node.
type Manifest struct {
	Version     int               `json:"version"`
	ID          string            `json:"id"`
	Launchables []Launchable      `json:"launchables"`
	Config      Config            `json:"config,omitempty"` // written to the file that CONFIG_PATH names
	Ports       []Port            `json:"ports,omitempty"`
	Service     *Service          `json:"service,omitempty"`
	MinReady    *field.Duration   `json:"min_ready,omitempty"` // before the pod counts as available; see ReadyAfter
	Health      *Health           `json:"health,omitempty"`
	Hooks       *Hooks            `json:"hooks,omitempty"`
	Disconnect  *Disconnect       `json:"disconnect,omitempty"`
	Volumes     []Volume          `json:"volumes,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

// Launchable is one supervised process of a pod, or several where the command is a directory of scripts.
type Launchable struct {
	Name     string   `json:"name"`
	Artifact Artifact `json:"artifact"`
	// Command is the program: a path in the artifact. A directory stands for every executable file in it.
	// Default of a tar: bin/launch. An exec artifact names its program itself.
	Command    string            `json:"command,omitempty"`
	Args       []string          `json:"args,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user,omitempty"`     // an account of the node; default: one of the pod's own where the node isolates
	WorkDir    string            `json:"work_dir,omitempty"` // absolute, or below POD_HOME, which is the default
	Restart    *Restart          `json:"restart,omitempty"`
	Resources  Resources         `json:"resources,omitzero"`
	StopSignal string            `json:"stop_signal,omitempty"` // such as SIGINT; default: SIGTERM
	StopGrace  *field.Duration   `json:"stop_grace,omitempty"`  // between the stop signal and SIGKILL
}

// Artifact is what a launchable runs.
type Artifact struct {
	Kind   string `json:"kind"`             // ArtifactTar or ArtifactExec
	URL    string `json:"url,omitempty"`    // of a tar: file:// or https://
	SHA256 string `json:"sha256,omitempty"` // of the tar as fetched, 64 hex digits
	Path   string `json:"path,omitempty"`   // of an exec: absolute, on the node
}

// Restart says what follows the end of a process.
type Restart struct {
	Policy     RestartPolicy   `json:"policy,omitempty"`      // default: always
	BackoffMin *field.Duration `json:"backoff_min,omitempty"` // before the first restart; doubles from there
	BackoffMax *field.Duration `json:"backoff_max,omitempty"` // bound of that doubling
}

// RestartPolicy says which ends of a process are followed by a start.
type RestartPolicy string

// The restart policies.
const (
	RestartAlways    RestartPolicy = "always"
	RestartOnFailure RestartPolicy = "on-failure" // not after exit status 0
	RestartNever     RestartPolicy = "never"
)

// Valid reports whether the policy is one of these, or empty.
func (p RestartPolicy) Valid() bool {
	return slices.Contains([]RestartPolicy{"", RestartAlways, RestartOnFailure, RestartNever}, p)
}

// Resources is what a process is expected to use; the scheduler reserves CPU and memory, and a node that isolates
// enforces all three.
type Resources struct {
	CPU    Millicores `json:"cpu,omitempty"`
	Memory Bytes      `json:"memory,omitempty"`
	PIDs   int64      `json:"pids,omitempty"` // processes and threads
}

// MaxPIDs returns how many processes and threads a process may be, with all that it starts.
func (r Resources) MaxPIDs() int64 { return cmp.Or(r.PIDs, DefaultPIDs) }

// Port is a named TCP port that the pod listens on at its node's address. Exactly one of Port and Dynamic is set.
type Port struct {
	Name    string `json:"name"`
	Port    int    `json:"port,omitempty"`    // 1 to 65535, the same on every node
	Dynamic bool   `json:"dynamic,omitempty"` // the farm picks a number from the node's port range
}

// Service is how others find the pod in Consul. A pod without one is found under its id.
type Service struct {
	Name string            `json:"name,omitempty"` // default: the pod's id
	Port string            `json:"port,omitempty"` // name of the port that it stands for; default: see Manifest.Services
	Tags []string          `json:"tags,omitempty"`
	Meta map[string]string `json:"meta,omitempty"`
	// Drain is for how long the pod serves on after it has left its name, before it is stopped; see DrainFor.
	Drain *field.Duration `json:"drain,omitempty"`
}

// Health is how a node finds out whether the pod works. Exactly one of HTTP, TCP and Script is set.
type Health struct {
	HTTP             *HTTPCheck      `json:"http,omitempty"`
	TCP              *TCPCheck       `json:"tcp,omitempty"`
	Script           *ScriptCheck    `json:"script,omitempty"`
	Interval         *field.Duration `json:"interval,omitempty"`          // between two checks
	Timeout          *field.Duration `json:"timeout,omitempty"`           // of one check
	InitialDelay     *field.Duration `json:"initial_delay,omitempty"`     // from the start of the processes to the first check
	SuccessThreshold int             `json:"success_threshold,omitempty"` // passes in a row that make it healthy; default 1
	FailureThreshold int             `json:"failure_threshold,omitempty"` // failures in a row that make it unhealthy; default 1
	// RestartAfter: a pod whose check has failed for so long is started again; default: never.
	RestartAfter *field.Duration `json:"restart_after,omitempty" feature:"restart-after"`
	MinReady     *field.Duration `json:"min_ready,omitempty"` // where older manifests have the pod's
}

// HTTPCheck passes on a 2xx answer to GET.
type HTTPCheck struct {
	Port string `json:"port"` // name of one of the pod's ports
	Path string `json:"path"` // starts with a slash
}

// TCPCheck passes when a connection is accepted.
type TCPCheck struct {
	Port string `json:"port"` // name of one of the pod's ports
}

// ScriptCheck passes when the program exits with status 0. It runs in the pod's environment, as its launchable does.
type ScriptCheck struct {
	Launchable string   `json:"launchable,omitempty"` // whose artifact holds it; default: the first
	Path       string   `json:"path"`                 // in the artifact
	Args       []string `json:"args,omitempty"`
}

// Hooks are programs of the pod's artifacts that the node runs at turning points of its life; see docs/manifest.md.
type Hooks struct {
	BeforeInstall *Hook `json:"before_install,omitempty"`
	AfterInstall  *Hook `json:"after_install,omitempty"`
	BeforeLaunch  *Hook `json:"before_launch,omitempty"`
	AfterLaunch   *Hook `json:"after_launch,omitempty"`
	BeforeStop    *Hook `json:"before_stop,omitempty"`
	AfterStop     *Hook `json:"after_stop,omitempty"`
}

// Hook is one program. A required one that fails keeps the step that it stands before, or belongs to, from being done.
type Hook struct {
	Launchable string          `json:"launchable,omitempty"` // whose artifact holds it; default: the first
	Path       string          `json:"path"`                 // in the artifact
	Args       []string        `json:"args,omitempty"`
	Timeout    *field.Duration `json:"timeout,omitempty"`
	Required   bool            `json:"required,omitempty"`
}

// Disconnect is what the pod does while its node cannot reach Consul's servers.
type Disconnect struct {
	StopAfter *field.Duration `json:"stop_after,omitempty"` // it stops by itself after this long; default: never
}

// Volume is a directory of the pod's identity on its node. It stays when the pod is upgraded.
type Volume struct {
	Name string `json:"name"` // its path is in the environment as VOLUME_<NAME>
}

// VolumeNames names the volumes. m may be nil.
func (m *Manifest) VolumeNames() []string {
	if m == nil {
		return nil
	}
	names := make([]string, len(m.Volumes))
	for i := range m.Volumes {
		names[i] = m.Volumes[i].Name
	}
	return names
}

// Decode reads a manifest strictly and validates it. Mistakes come back as field.Errors.
func Decode(data []byte) (*Manifest, error) { return field.Read[Manifest](data) }

// Canonical returns the manifest's canonical JSON: fields in declaration order, map keys sorted, defaults left out.
func (m *Manifest) Canonical() ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode manifest %s: %w", m.ID, err)
	}
	return data, nil
}

// Digest returns the address of canonical manifest bytes: their SHA-256 in lower-case hex.
func Digest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

// DynamicPorts returns the names of the ports whose numbers the farm picks.
func (m *Manifest) DynamicPorts() []string {
	var names []string
	for _, p := range m.Ports {
		if p.Dynamic {
			names = append(names, p.Name)
		}
	}
	return names
}

// PortMap returns the pod's ports by name. A dynamic one has the number zero.
func (m *Manifest) PortMap() map[string]int {
	ports := make(map[string]int, len(m.Ports))
	for _, p := range m.Ports {
		ports[p.Name] = p.Port
	}
	return ports
}

// Usage is what all processes of a pod are expected to use together: thousandths of a core, bytes, and processes and threads.
type Usage struct{ CPU, Memory, PIDs int64 }

// Resources returns what all processes of the pod use together.
func (m *Manifest) Resources() Usage {
	var sum Usage
	for _, l := range m.Launchables {
		sum.CPU += int64(l.Resources.CPU)
		sum.Memory += int64(l.Resources.Memory)
		sum.PIDs += l.Resources.MaxPIDs()
	}
	return sum
}

// ReadyAfter returns for how long the pod must run, and pass its check, before it counts as available.
func (m *Manifest) ReadyAfter() time.Duration {
	if m.MinReady == nil && m.Health != nil {
		return m.Health.MinReady.Or(DefaultMinReady)
	}
	return m.MinReady.Or(DefaultMinReady)
}

// RestartAfter returns how long the pod's check must fail until the pod is started again; zero: it never is.
func (m *Manifest) RestartAfter() time.Duration {
	if m.Health == nil {
		return 0
	}
	return m.Health.RestartAfter.Or(0)
}

// PassesWithin returns how long a check takes at most to say that something passes which does.
func (h *Health) PassesWithin() time.Duration {
	return time.Duration(max(1, h.SuccessThreshold))*h.Interval.Or(DefaultHealthInterval) + h.Timeout.Or(DefaultHealthTimeout)
}

// DrainFor returns for how long the pod serves on after it was deregistered and before it is stopped, so that whoever has just looked
// its address up is served. Nobody looks up one without ports.
func (m *Manifest) DrainFor() time.Duration {
	switch {
	case len(m.Ports) == 0:
		return 0
	case m.Service == nil:
		return DefaultDrain
	}
	return m.Service.Drain.Or(DefaultDrain)
}

// RunsOnce reports whether none of the pod's processes is ever started again: then a node runs a version of it at most once.
func (m *Manifest) RunsOnce() bool {
	for i := range m.Launchables {
		if r := m.Launchables[i].Restart; r == nil || r.Policy != RestartNever {
			return false
		}
	}
	return len(m.Launchables) > 0
}

// StopMargin is for how long after disconnect.stop_after a node's supervisor leaves it to the preparer to stop the pod. Nodes of all versions
// have it: farms count on it.
const StopMargin = 10 * time.Second

// maxStopAfter is half of what a time can be, and never comes.
const maxStopAfter = time.Duration(math.MaxInt64 / 2)

// StopsItself returns how long after the last contact with Consul the pod's processes are told to stop by the node's supervisor, unless the
// preparer has done that, with its hooks; false: never.
func (m *Manifest) StopsItself() (after time.Duration, ever bool) {
	if m.Disconnect == nil || m.Disconnect.StopAfter == nil {
		return 0, false
	}
	after = min(m.Disconnect.StopAfter.Or(0), maxStopAfter) + StopMargin
	if m.Hooks != nil && m.Hooks.BeforeStop != nil {
		after += min(m.Hooks.BeforeStop.Timeout.Or(DefaultHookTimeout), maxStopAfter-StopMargin)
	}
	return after, true
}

// Grace returns the longest stop grace of the pod's processes.
func (m *Manifest) Grace() time.Duration {
	var longest time.Duration
	for _, l := range m.Launchables {
		longest = max(longest, l.StopGrace.Or(DefaultStopGrace))
	}
	return longest
}

// WithoutSecrets returns the manifest as others than its nodes may see it: without config and without the environment
// of launchables, whose values may be secret. It shares the rest with the manifest, which stays as it is. m may be nil.
func (m *Manifest) WithoutSecrets() *Manifest {
	if m == nil {
		return nil
	}
	shown := *m
	shown.Config, shown.Launchables = nil, slices.Clone(m.Launchables)
	for i := range shown.Launchables {
		shown.Launchables[i].Env = nil
	}
	return &shown
}
