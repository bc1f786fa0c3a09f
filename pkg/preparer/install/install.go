// Package install turns a manifest and an identity into a version of a pod on the node's disk, and into the specifications of its processes:
// artifacts, configuration, volumes, environment, hooks, users. It knows no intents, no records and no Consul; what a version was installed from
// is in Installed, and whoever has that finds everything else again.
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

	"github.com/rcfarm/rcfarm/pkg/internal/account"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/machine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Artifacts makes an artifact present and returns the directory it is unpacked in. One that is there costs nothing, whatever
// else is being fetched. It bounds by itself how many are fetched at a time.
type Artifacts interface {
	// Ensure returns an error that has a method Refused() bool, true, where asking again will not help by itself.
	Ensure(ctx context.Context, a manifest.Artifact) (dir string, err error)
}

// Progress is told how far the work for one pod is.
type Progress interface {
	// At is told what is being done now.
	At(state pod.State, message string)
	// During is told what is waited for, until over is called.
	During(doing string) (over func())
	// Failed is told of what nothing depends on.
	Failed(message string, err error)
}

// Host is what the machine has for its pods.
type Host struct {
	Dir       string // absolute: pod records, homes and logs; belongs to one daemon (R11)
	HooksDir  string // absolute: the node's own hooks; empty: it has none
	Isolation Isolation
	Artifacts Artifacts
	Runtime   runtime.Runtime // runs hooks
	Trust     Trust           // nil: every manifest may run
	LogBytes  int64           // of one process before its log file is rotated
	LogKeep   int             // rotated log files kept for each process

	// Step is called at every durable step, by the name of what was done. It is there for tests that end the process.
	Step func(name string)
}

// Config is what New needs.
type Config struct {
	Host
	Node, Address string // the node's name, and an address of this machine that its pods listen on
	ContactNote   string // absolute: the file that says when Consul was last in touch
	Log           obs.Logger
	Limiter       *loop.LogLimiter
	HookFailed    func() // a hook failed or took too long
	FetchFailed   func() // an artifact is not there, perhaps for lack of space
}

// Node is the machine that pods are installed on.
type Node struct {
	cfg      Config
	accounts account.Directory
	users    users
	litter   wait.Signal // something was taken away that is to be deleted
}

// New returns a node, with the users that its disk says are taken; numbers are those that pods have besides, by identity.
func New(cfg Config, numbers map[pod.Identity]int) *Node {
	n := &Node{cfg: cfg, litter: wait.NewSignal()}
	n.loadUsers(numbers)
	return n
}

// Order is a version that is to be installed.
type Order struct {
	Pod       pod.Identity
	Digest    string
	Revision  int64
	Manifest  *manifest.Manifest
	Canonical json.RawMessage // of the manifest
	Signature string
	Ports     map[string]int // that were assigned
	Replicas  int            // of the pod's role; zero: nobody says
	UID       int            // the number that the pod has as a user and as a group; zero: none
	Before    *Installed     // what is installed now; nil: nothing
}

// Install makes a new version, up to its directory, with the hooks around that. What is installed now is not touched.
func (n *Node) Install(ctx context.Context, o *Order, tell Progress) (*Installed, error) {
	tell.At(pod.StateFetching, fetchText(o.Manifest))
	roots, err := n.Fetch(ctx, o.Manifest)
	if err != nil {
		return nil, err
	}
	if err := n.Trusted(o.Manifest, o.Signature); err != nil {
		return nil, err
	}
	tell.At(pod.StateInstalling, "installing "+Short(o.Digest))
	in := &Installed{Digest: o.Digest, Revision: o.Revision, Manifest: o.Canonical, Ports: EffectivePorts(o.Manifest, o.Ports), Replicas: o.Replicas}
	if err := n.checkPorts(ctx, newPorts(in.Ports, o.Before)); err != nil {
		return nil, err
	}
	v := n.version(o.Pod, o.UID, in, o.Manifest)
	if in.Processes, err = v.FindProcesses(roots); err != nil {
		return nil, err
	}
	v.roots = roots
	if err := v.claimData(); err != nil {
		return nil, err
	}
	if err := v.makeDirs(ctx, o.Before == nil); err != nil {
		return nil, err
	}
	if err := v.runHooks(ctx, tell, beforeInstall); err != nil {
		return nil, err
	}
	if err := v.layOut(); err != nil {
		return nil, err
	}
	v.roots = nil
	in.Launching = v.LaunchHooks()
	if err := v.runHooks(ctx, tell, afterInstall); err != nil {
		return nil, err
	}
	return in, n.Trusted(o.Manifest, o.Signature)
}

// Fetch makes all artifacts of a pod present and returns their directories by launchable. One that is a program of the
// node has none.
func (n *Node) Fetch(ctx context.Context, m *manifest.Manifest) (map[string]string, error) {
	dirs := make(map[string]string, len(m.Launchables))
	for i := range m.Launchables {
		l := &m.Launchables[i]
		if l.Artifact.Kind == manifest.ArtifactExec {
			continue
		}
		dir, err := n.cfg.Artifacts.Ensure(ctx, l.Artifact)
		if err != nil {
			n.cfg.FetchFailed()
			return nil, fmt.Errorf("artifact of %s: %w", l.Name, err)
		}
		dirs[l.Name] = dir
		n.cfg.Step("artifact there")
	}
	return dirs, nil
}

// fetchText says what is being fetched.
func fetchText(m *manifest.Manifest) string {
	var names []string
	for i := range m.Launchables {
		if m.Launchables[i].Artifact.Kind == manifest.ArtifactTar {
			names = append(names, m.Launchables[i].Name)
		}
	}
	if len(names) == 0 {
		return "looking for its programs on the node"
	}
	return "fetching " + strings.Join(names, ", ")
}

// EffectivePorts returns the manifest's ports, with the numbers that the farm assigned where it did.
func EffectivePorts(m *manifest.Manifest, assigned map[string]int) map[string]int {
	ports := m.PortMap()
	for name := range ports {
		if n := assigned[name]; n > 0 {
			ports[name] = n
		}
	}
	return ports
}

// newPorts returns the ports that the installed version does not hold already.
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

// checkPorts refuses a port that something else listens on, so that a pod is not taken for that something.
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
			return fmt.Errorf("port %s: %s holds %s; stop it, or let the pod use another port", name, holder(addr), addr)
		case err != nil:
			return fmt.Errorf("port %s: the node cannot listen on %s: %w", name, addr, err)
		}
		if err := listener.Close(); err != nil {
			return fmt.Errorf("port %s: close the trial listener on %s: %w", name, addr, err)
		}
	}
	return nil
}

// holder names who listens on an address.
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

// FileName names an identity in one path element. RC ids and roles hold no dots, so no two are alike.
func FileName(id pod.Identity) string { return fmt.Sprintf("%s.%s.%d", id.RCID, id.Role, id.Index) }

// Short shows enough of a digest to tell it from others.
func Short(digest string) string { return fmt.Sprintf("%.12s", digest) }

// Logs is the directory of a pod's logs.
func (n *Node) Logs(id pod.Identity) string { return n.dirOf(logsDir, id) }

func (n *Node) dirOf(kind string, id pod.Identity) string {
	return filepath.Join(n.cfg.Dir, kind, FileName(id))
}

// ErrManifest marks what only another manifest, or another preparer, mends.
var ErrManifest = errors.New("unusable manifest")

// lasting is an error of something that trying again does not mend by itself.
type lasting struct{ error }

func (l lasting) Unwrap() error { return l.error }

func forGood(err error) error { return lasting{err} }

// Hopeless reports whether an error is about something that trying again does not mend by itself: an artifact that is refused or not
// there, a manifest that is wrong or that the node does not trust, a program that is missing. One about what may be over in a
// moment, such as a server that does not answer, a port that is taken or a disk that is full, is not.
func Hopeless(err error) bool {
	var l lasting
	var r interface{ Refused() bool } // what Artifacts returns of an artifact that is not there, or not what the manifest says
	return errors.As(err, &l) || errors.Is(err, ErrManifest) || errors.As(err, &r) && r.Refused()
}

// Trust says whether the node runs a manifest; *trust.Node is one. It is asked until a version of it is installed: when the
// manifest is taken over, before anything of it is run, and once more at the end, because an artifact or a hook may take long. What was
// installed keeps running whatever it says later (P4).
type Trust interface {
	Check(m *manifest.Manifest, canonical []byte, signature string) error
}

// Trusted marks a refusal as one that trying again does not mend by itself.
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
