// Package manifest describes what a pod runs: its processes, where their files come from, its ports and its health
// check. A manifest is addressed by the SHA-256 of its canonical JSON, so it never changes under a name.
package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
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
)

// ArtifactTar is the artifact kind of a gzip-compressed tar archive that holds bin/launch.
const ArtifactTar = "tar"

// Manifest is one pod: processes that live and die together on one node.
type Manifest struct {
	Version     int               `json:"version"`
	ID          string            `json:"id"`
	Launchables []Launchable      `json:"launchables"`
	Ports       []Port            `json:"ports,omitempty"`
	Health      *Health           `json:"health,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

// Launchable is one supervised process of a pod.
type Launchable struct {
	Name      string            `json:"name"`
	Artifact  Artifact          `json:"artifact"`
	Args      []string          `json:"args,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Resources Resources         `json:"resources,omitzero"`
	StopGrace *field.Duration   `json:"stop_grace,omitempty"` // between SIGTERM and SIGKILL
}

// Artifact is a file that a node fetches, verifies and unpacks.
type Artifact struct {
	Kind   string `json:"kind"`   // ArtifactTar
	URL    string `json:"url"`    // file:// or https://
	SHA256 string `json:"sha256"` // of the file as fetched, 64 hex digits
}

// Resources is what a process is expected to use; the scheduler reserves it.
type Resources struct {
	CPU    int64 `json:"cpu,omitempty"`    // thousandths of a core
	Memory int64 `json:"memory,omitempty"` // bytes
}

// Port is a named TCP port that the pod listens on at its node's address.
type Port struct {
	Name string `json:"name"`
	Port int    `json:"port"` // 1 to 65535, the same on every node
}

// Health is the check that the node's Consul agent runs. Exactly one of HTTP and TCP is set.
type Health struct {
	HTTP     *HTTPCheck      `json:"http,omitempty"`
	TCP      *TCPCheck       `json:"tcp,omitempty"`
	Interval *field.Duration `json:"interval,omitempty"`  // between two checks
	Timeout  *field.Duration `json:"timeout,omitempty"`   // of one check
	MinReady *field.Duration `json:"min_ready,omitempty"` // passing for this long before the pod counts as available
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

// PortMap returns the pod's ports by name.
func (m *Manifest) PortMap() map[string]int {
	ports := make(map[string]int, len(m.Ports))
	for _, p := range m.Ports {
		ports[p.Name] = p.Port
	}
	return ports
}

// Resources returns what all processes of the pod use together.
func (m *Manifest) Resources() Resources {
	var sum Resources
	for _, l := range m.Launchables {
		sum.CPU += l.Resources.CPU
		sum.Memory += l.Resources.Memory
	}
	return sum
}

// Grace returns the longest stop grace of the pod's processes.
func (m *Manifest) Grace() time.Duration {
	var longest time.Duration
	for _, l := range m.Launchables {
		longest = max(longest, l.StopGrace.Or(DefaultStopGrace))
	}
	return longest
}
