// Package manifest describes what a pod runs: processes, where their files come from, ports and a health check. Records
// name a manifest by the SHA-256 of its canonical JSON.
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

// Version is the only format version of this build.
const Version = 1

// Defaults are applied when a manifest is used, and never written into it. So a digest depends only on the user's text.
const (
	DefaultStopGrace      = 10 * time.Second
	DefaultHealthInterval = 2 * time.Second
	DefaultHealthTimeout  = 2 * time.Second
	DefaultHookTimeout    = time.Minute
	DefaultBackoffMin     = 500 * time.Millisecond
	DefaultBackoffMax     = time.Minute
	DefaultPIDs           = 4096 // processes and threads, with all processes that it starts
	DefaultMinReady       = 10 * time.Second
	DefaultDrain          = time.Second
	DefaultCommand        = "bin/launch" // of a tar artifact
	DefaultStopSignal     = "SIGTERM"
)

// The kinds of artifacts.
const (
	ArtifactTar   = "tar"   // a gzip-compressed tar archive
	ArtifactExec  = "exec"  // a program that is on the node already
	ArtifactImage = "image" // an OCI image, which runs as a container
)

// Manifest is one pod: processes that live and die together on one node.
type Manifest struct {
	Version     int               `json:"version"`
	ID          string            `json:"id"`
	Launchables []Launchable      `json:"launchables"`
	Config      Config            `json:"config,omitempty"` // written to the file that CONFIG_PATH names
	Ports       []Port            `json:"ports,omitempty"`
	Service     *Service          `json:"service,omitempty"`
	MinReady    *field.Duration   `json:"min_ready,omitempty"` // until the pod is available; see ReadyAfter
	Health      *Health           `json:"health,omitempty"`
	Hooks       *Hooks            `json:"hooks,omitempty"`
	Disconnect  *Disconnect       `json:"disconnect,omitempty"`
	Volumes     []Volume          `json:"volumes,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

// Launchable is one supervised process, or several if Command is a directory of scripts.
type Launchable struct {
	Name     string   `json:"name"`
	Artifact Artifact `json:"artifact"`
	// Command is a path in the artifact. In a directory, each executable file is started. Default for a tar:
	// DefaultCommand. It is empty for an exec artifact. For an image it is a program that replaces the entrypoint.
	Command string `json:"command,omitempty"`
	// Args replace the CMD of an image.
	Args []string          `json:"args,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	// User is an account of the node. Default: the pod's own user, if the node isolates pods. For an image it is an
	// account of the image, also with a group; default: the image's USER.
	User string `json:"user,omitempty"`
	// WorkDir is absolute, or below POD_HOME, which is the default. For an image it is absolute, in the image; default:
	// the image's WORKDIR.
	WorkDir    string          `json:"work_dir,omitempty"`
	Restart    *Restart        `json:"restart,omitempty"`
	Resources  Resources       `json:"resources,omitzero"`
	StopSignal string          `json:"stop_signal,omitempty"` // such as SIGINT; default: SIGTERM
	StopGrace  *field.Duration `json:"stop_grace,omitempty"`  // between the stop signal and SIGKILL

	// These are only for images.
	Tmpfs        []Tmpfs       `json:"tmpfs,omitempty" feature:"images"`
	ShmSize      Bytes         `json:"shm_size,omitempty" feature:"images"` // of /dev/shm
	ReadOnlyRoot bool          `json:"read_only_root,omitempty" feature:"images"`
	Capabilities *Capabilities `json:"capabilities,omitempty" feature:"images"`
}

// Tmpfs is a directory of a container whose files are in memory.
type Tmpfs struct {
	Path string `json:"path"`
	Size Bytes  `json:"size,omitempty"`
}

// Capabilities are changes of the capabilities that a container has by default: names of capabilities(7) with or
// without CAP_.
type Capabilities struct {
	Add  []string `json:"add,omitempty"`
	Drop []string `json:"drop,omitempty"` // may have AllCapabilities
}

// Artifact is what a launchable runs.
type Artifact struct {
	Kind   string `json:"kind"`             // ArtifactTar, ArtifactExec or ArtifactImage
	URL    string `json:"url,omitempty"`    // of a tar: file:// or https://
	SHA256 string `json:"sha256,omitempty"` // of the tar as fetched, 64 hex digits
	Path   string `json:"path,omitempty"`   // of an exec: absolute, on the node
	// Ref is of an image: registry/name:tag@sha256:digest. The tag may be missing; in a manifest, the digest may not.
	Ref string `json:"ref,omitempty" feature:"images"`
	// Platform is of an image: os/architecture[/variant]; default: the node's own.
	Platform string `json:"platform,omitempty" feature:"images"`
}

// IsImage reports whether the artifact is an image, so that its programs run in a container.
func (a *Artifact) IsImage() bool { return a.Kind == ArtifactImage }

// IsFetched reports whether the artifact is an archive that the node fetches, and whose digest is in SHA256.
func (a *Artifact) IsFetched() bool { return a.Kind == ArtifactTar }

// HasSwitches reports whether the node runs the artifact's programs bin/enable and bin/disable, if there are such.
func (a *Artifact) HasSwitches() bool { return a.Kind == ArtifactTar }

// IsOnNode reports whether paths of programs are absolute and on the node. Otherwise they are paths in the artifact,
// and absolute in an image.
func (a *Artifact) IsOnNode() bool { return a.Kind == ArtifactExec }

// Restart is what the node does when a process ends.
type Restart struct {
	Policy     RestartPolicy   `json:"policy,omitempty"`      // default: always
	BackoffMin *field.Duration `json:"backoff_min,omitempty"` // before the first restart; then doubles
	BackoffMax *field.Duration `json:"backoff_max,omitempty"` // the longest pause
}

// RestartPolicy decides after which ends of a process the node starts it again.
type RestartPolicy string

// The restart policies.
const (
	RestartAlways    RestartPolicy = "always"
	RestartOnFailure RestartPolicy = "on-failure" // not after exit status 0
	RestartNever     RestartPolicy = "never"
)

// Valid reports whether the policy exists, or is empty.
func (r RestartPolicy) Valid() bool {
	return slices.Contains([]RestartPolicy{"", RestartAlways, RestartOnFailure, RestartNever}, r)
}

// Resources is what a process is expected to use. The scheduler reserves CPU and memory. Isolation enforces all three.
type Resources struct {
	CPU    Millicores `json:"cpu,omitempty"`
	Memory Bytes      `json:"memory,omitempty"`
	PIDs   int64      `json:"pids,omitempty"` // processes and threads
}

// MaxPIDs is PIDs or its default.
func (r Resources) MaxPIDs() int64 { return cmp.Or(r.PIDs, DefaultPIDs) }

// Port is a named TCP port at the node's address. Exactly one of Port and Dynamic is set.
type Port struct {
	Name    string `json:"name"`
	Port    int    `json:"port,omitempty"`    // 1 to 65535, the same on every node
	Dynamic bool   `json:"dynamic,omitempty"` // the farm picks a number from the node's port range
}

// Service is how clients find the pod in Consul; without it, under the pod's id.
type Service struct {
	Name string `json:"name,omitempty"` // default: the pod's id
	// Port is the name of the service's port; default: see Manifest.Services.
	Port string            `json:"port,omitempty"`
	Tags []string          `json:"tags,omitempty"`
	Meta map[string]string `json:"meta,omitempty"`
	// Drain: see DrainFor.
	Drain *field.Duration `json:"drain,omitempty"`
}

// Health is how a node finds out whether the pod works. Exactly one of HTTP, TCP and Script is set.
type Health struct {
	HTTP     *HTTPCheck      `json:"http,omitempty"`
	TCP      *TCPCheck       `json:"tcp,omitempty"`
	Script   *ScriptCheck    `json:"script,omitempty"`
	Interval *field.Duration `json:"interval,omitempty"` // between two checks
	Timeout  *field.Duration `json:"timeout,omitempty"`  // of one check
	// InitialDelay is from the start of the processes to the first check.
	InitialDelay *field.Duration `json:"initial_delay,omitempty"`
	// SuccessThreshold is how many passes in a row make the pod healthy; default 1.
	SuccessThreshold int `json:"success_threshold,omitempty"`
	// FailureThreshold is how many failures in a row make the pod unhealthy; default 1.
	FailureThreshold int `json:"failure_threshold,omitempty"`
	// RestartAfter is how long the check must fail until a restart; default: never.
	RestartAfter *field.Duration `json:"restart_after,omitempty" feature:"restart-after"`
	MinReady     *field.Duration `json:"min_ready,omitempty"` // older manifests have MinReady here
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

// ScriptCheck passes when a program of a launchable's artifact exits with 0, in the launchable's environment.
type ScriptCheck struct {
	Launchable string   `json:"launchable,omitempty"` // its artifact has the program; default: the first
	Path       string   `json:"path"`                 // in the artifact; absolute for an exec
	Args       []string `json:"args,omitempty"`
}

// Hooks are programs that the node runs at points of the pod's life; see docs/manifest.md.
type Hooks struct {
	BeforeInstall *Hook `json:"before_install,omitempty"`
	AfterInstall  *Hook `json:"after_install,omitempty"`
	BeforeLaunch  *Hook `json:"before_launch,omitempty"`
	AfterLaunch   *Hook `json:"after_launch,omitempty"`
	BeforeStop    *Hook `json:"before_stop,omitempty"`
	AfterStop     *Hook `json:"after_stop,omitempty"`
}

// Hook is one program. If a required hook fails, the node does not do its step.
type Hook struct {
	Launchable string          `json:"launchable,omitempty"` // its artifact has the program; default: the first
	Path       string          `json:"path"`                 // in the artifact; absolute for an exec
	Args       []string        `json:"args,omitempty"`
	Timeout    *field.Duration `json:"timeout,omitempty"`
	Required   bool            `json:"required,omitempty"`
}

// Disconnect is what the pod does while its node cannot reach Consul's servers.
type Disconnect struct {
	StopAfter *field.Duration `json:"stop_after,omitempty"` // the pod stops by itself after this time; default: never
}

// Volume is a directory on the node that belongs to the pod's identity. The node keeps it when the pod is upgraded or
// stopped.
type Volume struct {
	Name string `json:"name"` // the environment variable VOLUME_<NAME> has its path
	// Path is where the pod's containers see it. A pod with an image must have it, other pods must not.
	Path     string `json:"path,omitempty" feature:"images"`
	ReadOnly bool   `json:"read_only,omitempty" feature:"images"` // for containers
}

// HasImage reports whether a launchable is an image.
func (m *Manifest) HasImage() bool {
	return slices.ContainsFunc(m.Launchables, func(l Launchable) bool { return l.Artifact.IsImage() })
}

// VolumeNames returns the volumes' names. m may be nil.
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

// Decode decodes strictly and validates. Mistakes are returned as field.Errors.
func Decode(data []byte) (*Manifest, error) { return field.Read[Manifest](data) }

// Canonical returns JSON with fields in the order of declaration and sorted map keys, without fields left out.
func (m *Manifest) Canonical() ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode manifest %s: %w", m.ID, err)
	}
	return data, nil
}

// Digest returns the SHA-256 in lower-case hex.
func Digest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

// DynamicPorts returns the names of dynamic ports.
func (m *Manifest) DynamicPorts() []string {
	var names []string
	for _, p := range m.Ports {
		if p.Dynamic {
			names = append(names, p.Name)
		}
	}
	return names
}

// PortMap returns ports by name; zero for a dynamic port.
func (m *Manifest) PortMap() map[string]int {
	ports := make(map[string]int, len(m.Ports))
	for _, p := range m.Ports {
		ports[p.Name] = p.Port
	}
	return ports
}

// Usage is in thousandths of a core, bytes, and processes and threads.
type Usage struct{ CPU, Memory, PIDs int64 }

// Resources returns what all processes are expected to use together.
func (m *Manifest) Resources() Usage {
	var sum Usage
	for _, l := range m.Launchables {
		sum.CPU += int64(l.Resources.CPU)
		sum.Memory += int64(l.Resources.Memory)
		sum.PIDs += l.Resources.MaxPIDs()
	}
	return sum
}

// ReadyAfter is how long the pod must run, and pass its check, before it is available.
func (m *Manifest) ReadyAfter() time.Duration {
	if m.MinReady == nil && m.Health != nil {
		return m.Health.MinReady.Or(DefaultMinReady)
	}
	return m.MinReady.Or(DefaultMinReady)
}

// RestartAfter is Health.RestartAfter; zero: never.
func (m *Manifest) RestartAfter() time.Duration {
	if m.Health == nil {
		return 0
	}
	return m.Health.RestartAfter.Or(0)
}

// PassesWithin is the longest time until the check of a working service passes.
func (h *Health) PassesWithin() time.Duration {
	return time.Duration(max(1, h.SuccessThreshold))*h.Interval.Or(DefaultHealthInterval) +
		h.Timeout.Or(DefaultHealthTimeout)
}

// DrainFor is how long the pod still runs after it was deregistered, for clients that have just looked up its address.
// Without ports it is zero, because such a pod has no clients.
func (m *Manifest) DrainFor() time.Duration {
	switch {
	case len(m.Ports) == 0:
		return 0
	case m.Service == nil:
		return DefaultDrain
	}
	return m.Service.Drain.Or(DefaultDrain)
}

// RunsOnce reports whether no process is ever restarted. Then a node runs each version at most once.
func (m *Manifest) RunsOnce() bool {
	for i := range m.Launchables {
		if r := m.Launchables[i].Restart; r == nil || r.Policy != RestartNever {
			return false
		}
	}
	return len(m.Launchables) > 0
}

// StopMargin is how long after disconnect.stop_after the supervisor waits for the preparer to stop the pod. It must be
// the same in all versions, because farms rely on it.
const StopMargin = 10 * time.Second

// maxStopAfter lets sums with stop_after fit into a time.Duration.
const maxStopAfter = time.Duration(math.MaxInt64 / 2)

// StopsItself returns how long after the node's last contact with Consul the supervisor stops the processes. The
// preparer stops them earlier, with their hooks. ever is false without disconnect.stop_after.
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

// Grace returns the longest stop grace.
func (m *Manifest) Grace() time.Duration {
	var longest time.Duration
	for _, l := range m.Launchables {
		longest = max(longest, l.StopGrace.Or(DefaultStopGrace))
	}
	return longest
}

// WithoutSecrets returns the manifest without config and env, for programs that do not run the pod. It shares the rest
// with m, which may be nil.
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
