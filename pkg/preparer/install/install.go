// Package install makes a version of a pod on the node's disk: artifacts, configuration, volumes, users and hooks. It
// also makes the specifications of the pod's processes. It does not use intents, records or Consul. Everything else
// about a version is derived from Installed.
package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/account"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/machine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Artifacts fetches artifacts.
type Artifacts interface {
	// Ensure returns the directory with the unpacked tree of an artifact. If it is present, Ensure returns at once,
	// even while other artifacts are fetched. If another try would not help, its error has a method Refused() bool that
	// returns true.
	Ensure(ctx context.Context, a manifest.Artifact) (dir string, err error)
}

// Progress receives reports about the work on one pod.
type Progress interface {
	// At reports the current step.
	At(state pod.State, message string)
	// During reports what the work waits for, until over is called.
	During(doing string) (over func())
	// Pulling reports how far the pull of an image is, and for how much longer it has made progress since the last
	// call. An empty text ends the report.
	Pulling(text string, arrived time.Duration)
	// Failed reports a failure that does not stop the work.
	Failed(message string, err error)
}

// Host is what a machine offers to its pods.
type Host struct {
	Dir       string // data directory, absolute; belongs to one daemon (R11)
	HooksDir  string // directory of the node's own hooks, absolute; empty: no hooks
	Isolation Isolation
	Artifacts Artifacts
	Images    Images   // nil: the node runs no containers
	NoImages  []string // why Images is nil, each with its cure
	// PullDeadline is how long the pulls of a version may take before the pod's own deadline runs.
	PullDeadline time.Duration
	Capabilities []string        // that manifests may add to a container's
	Runtime      runtime.Runtime // runs hooks
	Trust        Trust           // nil: every manifest may run
	LogBytes     int64           // size from which a process's log file is rotated
	LogKeep      int             // rotated log files kept for each process

	// Step is called with the name of each step before and after a change on the disk. Tests end the process there.
	Step func(name string)
}

// Config is what New needs.
type Config struct {
	Host
	Node, Address string // the node's name, and an address of this machine that its pods listen on
	ContactNote   string // absolute path of the contact note
	Log           obs.Logger
	Limiter       *loop.LogLimiter
	HookFailed    func() // called when a hook failed or took too long
	FetchFailed   func() // called when an artifact or an image could not be fetched, perhaps because of a full disk
}

// Node installs pods on one machine.
type Node struct {
	cfg      Config
	accounts account.Directory
	users    users       // numbers for users of pods
	blocks   users       // blocks of numbers for users of containers
	litter   wait.Signal // raised when a directory was moved away and must be deleted
}

// New returns a Node. numbers has the user numbers in the pods' records. New also finds those that own files on the
// disk.
func New(cfg Config, numbers map[pod.Identity]int) *Node {
	n := &Node{cfg: cfg, litter: wait.NewSignal()}
	n.loadUsers(numbers)
	return n
}

// Order is a version to install.
type Order struct {
	Pod       pod.Identity
	Digest    string
	Revision  int64
	Manifest  *manifest.Manifest
	Canonical json.RawMessage // of the manifest
	Signature string
	Ports     map[string]int // numbers that the farm assigned
	Replicas  int            // of the pod's role; zero: not known
	UID       int            // number of the pod's user and group; zero: none
	Before    *Installed     // the version installed now; nil: none
}

// Install makes the directory of a new version, and runs the hooks around that. It does not touch the version installed
// now.
func (n *Node) Install(ctx context.Context, o *Order, progress Progress) (*Installed, error) {
	progress.At(pod.StateFetching, fetchText(o.Manifest))
	fetched, err := n.Fetch(ctx, o.Manifest, progress)
	if err != nil {
		return nil, err
	}
	if err := n.Trusted(o.Manifest, o.Signature); err != nil {
		return nil, err
	}
	progress.At(pod.StateInstalling, "installing "+Short(o.Digest))
	in := &Installed{
		Digest: o.Digest, Revision: o.Revision, Manifest: o.Canonical,
		Ports: EffectivePorts(o.Manifest, o.Ports), Replicas: o.Replicas,
	}
	if err := n.checkPorts(ctx, newPorts(in.Ports, o.Before)); err != nil {
		return nil, err
	}
	v := n.version(o.Pod, o.UID, in, o.Manifest)
	if in.Processes, err = v.FindProcesses(fetched); err != nil {
		return nil, err
	}
	v.roots, v.images = fetched.dirs, fetched.images
	if err := v.claimData(); err != nil {
		return nil, err
	}
	makeDirs := v.makeDirs
	if o.Before == nil { // no earlier version may still run
		makeDirs = v.takeOverDirs
	}
	if err := makeDirs(ctx); err != nil {
		return nil, err
	}
	if err := v.runHooks(ctx, progress, beforeInstall); err != nil {
		return nil, err
	}
	if err := v.layOut(); err != nil {
		return nil, err
	}
	v.roots = nil
	in.Launching = v.LaunchHooks()
	if err := v.runHooks(ctx, progress, afterInstall); err != nil {
		return nil, err
	}
	return in, n.Trusted(o.Manifest, o.Signature)
}

// Fetch gets a pod's artifacts and images. A nil progress is allowed.
func (n *Node) Fetch(ctx context.Context, m *manifest.Manifest, progress Progress) (Fetched, error) {
	got := Fetched{dirs: map[string]string{}, images: map[string]image.Image{}}
	for i := range m.Launchables {
		l := &m.Launchables[i]
		var err error
		switch {
		case l.Artifact.IsFetched():
			got.dirs[l.Name], err = n.cfg.Artifacts.Ensure(ctx, l.Artifact)
		case l.Artifact.IsImage():
			got.images[l.Name], err = n.pull(ctx, l, progress)
		default:
			continue
		}
		if err != nil {
			n.cfg.FetchFailed()
			return Fetched{}, fmt.Errorf("artifact of %s: %w", l.Name, err)
		}
		n.cfg.Step("artifact there")
	}
	return got, nil
}

func fetchText(m *manifest.Manifest) string {
	var names []string
	for i := range m.Launchables {
		if a := &m.Launchables[i].Artifact; a.IsFetched() || a.IsImage() {
			names = append(names, m.Launchables[i].Name)
		}
	}
	if len(names) == 0 {
		return "looking for its programs on the node"
	}
	return "fetching " + strings.Join(names, ", ")
}

// EffectivePorts returns the ports of the manifest, with the numbers that the farm assigned to dynamic ports.
func EffectivePorts(m *manifest.Manifest, assigned map[string]int) map[string]int {
	ports := m.PortMap()
	for name := range ports {
		if n := assigned[name]; n > 0 {
			ports[name] = n
		}
	}
	return ports
}

// newPorts returns the ports that the installed version does not use.
func newPorts(ports map[string]int, installed *Installed) map[string]int {
	if installed == nil {
		return ports
	}
	held := slices.Collect(maps.Values(installed.Ports))
	fresh := map[string]int{}
	for name, port := range ports {
		if !slices.Contains(held, port) {
			fresh[name] = port
		}
	}
	return fresh
}

// checkPorts returns an error if another process listens on one of the ports, because the pod's clients would reach it.
func (n *Node) checkPorts(ctx context.Context, ports map[string]int) error {
	var config net.ListenConfig
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		if ports[name] == 0 {
			return fmt.Errorf("port %s: dynamic, and the farm gave it no number", name)
		}
		addr := net.JoinHostPort(n.cfg.Address, strconv.Itoa(ports[name]))
		listener, err := config.Listen(ctx, "tcp", addr)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("port %s: %s holds %s; stop it, or let the pod use another port", name,
				holder(addr), addr)
		case err != nil:
			return fmt.Errorf("port %s: the node cannot listen on %s: %w", name, addr, err)
		}
		if err := listener.Close(); err != nil {
			return fmt.Errorf("port %s: close the trial listener on %s: %w", name, addr, err)
		}
	}
	return nil
}

func holder(addr string) string {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return "something else on the node"
	}
	pid, name := machine.Holder(os.DirFS("/"), at)
	if pid == 0 {
		return "something else on the node"
	}
	return fmt.Sprintf("process %d (%q)", pid, name)
}

// FileName is unique and valid in paths, because RC ids and roles contain no dots.
func FileName(id pod.Identity) string { return fmt.Sprintf("%s.%s.%d", id.RCID, id.Role, id.Index) }

// Short is for people.
func Short(digest string) string { return fmt.Sprintf("%.12s", digest) }

// Logs returns the directory of a pod's logs.
func (n *Node) Logs(id pod.Identity) string { return n.dirOf(logsDir, id) }

func (n *Node) dirOf(kind string, id pod.Identity) string {
	return filepath.Join(n.cfg.Dir, kind, FileName(id))
}

// ErrManifest means that this manifest cannot run here until the manifest, the policy or the preparer changes.
var ErrManifest = errors.New("unusable manifest")

// lasting marks an error that would also end another try.
type lasting struct{ error }

func (l lasting) Unwrap() error { return l.error }

func forGood(err error) error { return lasting{err} }

// Hopeless reports whether another try would end with the same error: an artifact is refused or missing, a manifest is
// wrong or not trusted, a program is missing. It returns false if a server does not answer, a port is in use, or the
// disk is full.
func Hopeless(err error) bool {
	var l lasting
	// see Artifacts.Ensure
	var r interface{ Refused() bool }
	return errors.As(err, &l) || errors.Is(err, ErrManifest) || errors.As(err, &r) && r.Refused()
}

// Trust decides whether the node runs a manifest. The preparer asks when it has read the manifest, before it runs a
// program of it, and at the end of the installation, because a fetch or a hook can take long. If Trust refuses a
// manifest later, the installed version continues to run (P4).
type Trust interface {
	Check(m *manifest.Manifest, canonical []byte, signature string) error
}

// Trusted returns nil if the node may run the manifest, else an ErrManifest.
func (n *Node) Trusted(m *manifest.Manifest, signature string) error {
	if n.cfg.Trust == nil {
		return nil
	}
	canonical, err := m.Canonical()
	if err == nil {
		err = n.cfg.Trust.Check(m, canonical, signature)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrManifest, err)
	}
	return nil
}
