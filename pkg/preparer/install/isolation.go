package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/internal/account"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// Isolation is what keeps the node's pods apart, as far as the host allows. The zero value: they run as the preparer does.
type Isolation struct {
	Users  UserRange // each pod is one of them; zero: all run as the preparer's own user
	Tmp    bool      // each pod has a /tmp of its own
	Limits bool      // each process is held to the limits of its launchable, as far as the runtime can
	// AllowRoot lets manifests ask for the user root.
	AllowRoot bool
	// NoUsers is why a preparer that is root cannot give pods users of their own. Then no process is started as root in place
	// of one. Empty: it can, or need not.
	NoUsers string
}

// String names what pods have of their own, for the node's record.
func (in Isolation) String() string {
	var parts []string
	for _, part := range []struct {
		name string
		has  bool
	}{{"users", in.Users.on()}, {"cgroup", in.Limits}, {"tmp", in.Tmp}} {
		if part.has {
			parts = append(parts, part.name)
		}
	}
	switch {
	case in.NoUsers != "":
		return "refused" // what runs goes on, nothing is started
	case len(parts) == 0:
		return "none"
	}
	return strings.Join(parts, ",")
}

// isolation is what processes and hooks of a launchable run under; nil: as the preparer does.
func (v *Version) isolation(l *manifest.Launchable) (*runtime.Isolation, error) {
	in := v.n.cfg.Isolation
	iso, err := in.of(v.uid, l, v.n.lookUp)
	if err != nil {
		return nil, fmt.Errorf("user of %s: %w", l.Name, err)
	}
	if iso != nil && in.Tmp {
		iso.Tmp = v.n.dirOf(tmpDir, v.ID)
	}
	in.limit(iso, l.Resources)
	return iso, nil
}

// of decides as whom a launchable runs.
func (in Isolation) of(number int, l *manifest.Launchable, lookUp func(string) (account.Account, error)) (*runtime.Isolation, error) {
	own := account.Account{UID: os.Getuid(), GID: os.Getgid()}
	if l.User != "" {
		var err error
		if own, err = lookUp(l.User); err != nil {
			return nil, err
		}
	}
	switch {
	case (in.Users.on() || in.NoUsers != "") && own.UID == 0 && l.User != "" && !in.AllowRoot:
		return nil, fmt.Errorf("the manifest asks for %q, and this node does not allow it; see --allow-root-pods", l.User)
	case in.NoUsers != "" && (l.User == "" || own.UID != 0):
		return nil, fmt.Errorf("this node gives pods no users of their own, and starts none as root in place of one: %s; see --isolation", in.NoUsers)
	case in.Users.on() && number == 0:
		return nil, fmt.Errorf("user numbers from %d to %d: %w", in.Users.First, in.Users.Last, errNoUser)
	case in.Users.on() && l.User != "":
		// The pod's group besides the account's own, for what belongs to the pod.
		return &runtime.Isolation{UID: own.UID, GID: own.GID, Groups: slices.Concat(own.Groups, []int{number}), NoNewPrivileges: true}, nil
	case in.Users.on():
		return &runtime.Isolation{UID: number, GID: number, NoNewPrivileges: true}, nil
	case own.UID != os.Getuid():
		return nil, fmt.Errorf("the manifest asks for %q, and this node runs pods as the preparer's user alone; see --isolation", l.User)
	case in.none():
		return nil, nil //nolint:nilnil // no isolation is an answer
	default:
		return &runtime.Isolation{UID: os.Getuid(), GID: os.Getgid(), NoNewPrivileges: true}, nil
	}
}

// none reports whether processes run just as the preparer does.
func (in Isolation) none() bool { return !in.Users.on() && !in.Tmp && !in.Limits }

// limit holds a process to the limits of its launchable.
func (in Isolation) limit(iso *runtime.Isolation, r manifest.Resources) {
	if iso != nil && in.Limits {
		iso.CPU, iso.Memory, iso.PIDs = int64(r.CPU), int64(r.Memory), r.MaxPIDs()
	}
}

// lookUp finds an account of the node by its name, or by its number. User 0 has one name here, so that nobody gets it unawares.
func (n *Node) lookUp(name string) (account.Account, error) {
	found, err := n.accounts.Lookup(name)
	if err == nil && found.UID == 0 && name != "root" {
		err = errors.New("it is user 0, which only the name root asks for")
	}
	if err != nil {
		return account.Account{}, fmt.Errorf("%q: %w; allowed: an account of this node", name, err)
	}
	return found, nil
}

func ownerOf(path string) (uid, gid int, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, errors.ErrUnsupported
	}
	return int(st.Uid), int(st.Gid), nil
}

// owner is whom files of a launchable belong to: its user, and the pod's own group, which all processes of the pod are in.
// Nil: whoever made them.
func (v *Version) owner(l *manifest.Launchable) (*account.Account, error) {
	iso, err := v.isolation(l)
	if err != nil || !v.n.cfg.Isolation.Users.on() {
		return nil, err
	}
	return &account.Account{UID: iso.UID, GID: v.uid}, nil
}

// ownDir makes a directory and gives it to its owner; with takeOver also one that was another's, with what that one has in it.
// What is there keeps its mode; what is made is open to the whole pod.
func (n *Node) ownDir(ctx context.Context, dir string, owner *account.Account, takeOver bool) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(dir, 0o750)
	if err == nil && owner != nil {
		err = os.Chmod(dir, 0o770)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is a %s; allowed: a directory", dir, info.Mode().Type())
	case owner == nil:
		return nil
	}
	uid, gid, err := ownerOf(dir)
	made := uid == os.Getuid() && gid == os.Getgid() // now, or by a predecessor that got no further
	if err != nil || uid == owner.UID && gid == owner.GID || !takeOver && !made {
		return err
	}
	return n.giveDir(ctx, dir, owner)
}

// makeTmp makes the directory that the pod sees as /tmp. Nobody else can enter the one that it is in.
func (n *Node) makeTmp(id pod.Identity) error {
	if !n.cfg.Isolation.Tmp {
		return nil
	}
	dir := n.dirOf(tmpDir, id)
	err := os.MkdirAll(filepath.Dir(dir), 0o700)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = os.Chmod(dir, 0o777|fs.ModeSticky)
	}
	if err != nil {
		return fmt.Errorf("make tmp of pod: %w", err)
	}
	return nil
}
