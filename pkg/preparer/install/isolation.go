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

// Isolation is how the node isolates its pods. With the zero value, pods run as the preparer's user, without limits.
type Isolation struct {
	Users UserRange // each pod gets a user from this range; zero: all run as the preparer's user
	// Blocks are blocks of numbers, one for the containers of each pod; zero: this node cannot show the files of an
	// image with other owners.
	Blocks UserRange
	Tmp    bool // each pod has its own /tmp
	Limits bool // processes have the limits of their launchable that the runtime supports
	// AllowRoot: manifests may ask for the user root.
	AllowRoot bool
	// NoUsers is why this preparer, which runs as root, cannot give pods their own users. Processes that need one then
	// do not start, because they would run as root. Empty: pods get users, or need none.
	NoUsers string
}

// String is what each pod has of its own, for the node's record.
func (i Isolation) String() string {
	var parts []string
	for _, part := range []struct {
		name string
		has  bool
	}{{"users", i.Users.on()}, {"cgroup", i.Limits}, {"tmp", i.Tmp}} {
		if part.has {
			parts = append(parts, part.name)
		}
	}
	switch {
	case i.NoUsers != "":
		return "refused" // running pods continue to run, new pods do not start
	case len(parts) == 0:
		return "none"
	}
	return strings.Join(parts, ",")
}

func (v *Version) isolation(l *manifest.Launchable) (*runtime.Isolation, error) {
	in := v.n.cfg.Isolation
	if l.Artifact.IsImage() && v.uid == 0 {
		return nil, fmt.Errorf("user of %s: user numbers from %d to %d: %w", l.Name, in.Users.First, in.Users.Last,
			errNoUser)
	}
	if l.Artifact.IsImage() {
		iso := &runtime.Isolation{UID: v.uid, GID: v.uid, NoNewPrivileges: true} // the container has its own user
		in.limit(iso, l.Resources)
		return iso, nil
	}
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

// of returns the isolation of a launchable, with its user. number is the pod's number; zero: none.
func (i Isolation) of(number int, l *manifest.Launchable,
	lookUp func(string) (account.Account, error),
) (*runtime.Isolation, error) {
	own := account.Account{UID: os.Getuid(), GID: os.Getgid()}
	if l.User != "" {
		var err error
		if own, err = lookUp(l.User); err != nil {
			return nil, err
		}
	}
	switch {
	case (i.Users.on() || i.NoUsers != "") && own.UID == 0 && l.User != "" && !i.AllowRoot:
		return nil, fmt.Errorf("the manifest asks for %q, and this node does not allow it; see --allow-root-pods",
			l.User)
	case i.NoUsers != "" && (l.User == "" || own.UID != 0):
		return nil, fmt.Errorf("this node gives pods no users of their own, and starts none as root in place of one: "+
			"%s; see --isolation", i.NoUsers)
	case i.Users.on() && number == 0:
		return nil, fmt.Errorf("user numbers from %d to %d: %w", i.Users.First, i.Users.Last, errNoUser)
	case i.Users.on() && l.User != "":
		// The pod's files belong to its own group.
		return &runtime.Isolation{
			UID: own.UID, GID: own.GID, Groups: slices.Concat(own.Groups, []int{number}),
			NoNewPrivileges: true,
		}, nil
	case i.Users.on():
		return &runtime.Isolation{UID: number, GID: number, NoNewPrivileges: true}, nil
	case own.UID != os.Getuid():
		return nil, fmt.Errorf("the manifest asks for %q, and this node runs pods as the preparer's user alone; see "+
			"--isolation", l.User)
	case i.none():
		return nil, nil //nolint:nilnil // no isolation is an answer
	default:
		return &runtime.Isolation{UID: os.Getuid(), GID: os.Getgid(), NoNewPrivileges: true}, nil
	}
}

func (i Isolation) none() bool { return !i.Users.on() && !i.Tmp && !i.Limits }

func (i Isolation) limit(iso *runtime.Isolation, r manifest.Resources) {
	if iso != nil && i.Limits {
		iso.CPU, iso.Memory, iso.PIDs = int64(r.CPU), int64(r.Memory), r.MaxPIDs()
	}
}

// lookUp finds user 0 only by the name "root", so that no manifest asks for root by mistake.
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

// owner returns the owner of a launchable's files: its user, and the pod's own group, in which all processes of the pod
// are. Nil means the preparer's user.
func (v *Version) owner(l *manifest.Launchable) (*account.Account, error) {
	if l.Artifact.IsImage() {
		_, c, err := v.containerOf(l, filepath.Join(v.n.cfg.Dir, containersDir))
		if err != nil {
			return nil, err
		}
		return &account.Account{UID: c.UID, GID: c.GID}, nil
	}
	iso, err := v.isolation(l)
	if err != nil || !v.n.cfg.Isolation.Users.on() {
		return nil, err
	}
	return &account.Account{UID: iso.UID, GID: v.uid}, nil
}

// ownDir makes a missing directory, in which all processes of the pod may write, and sets its owner. With takeOver it
// also changes a directory of another user, and that user's files in it. An existing directory keeps its mode.
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
	made := uid == os.Getuid() && gid == os.Getgid() // made now, or by a preparer that died before the next step
	if err != nil || uid == owner.UID && gid == owner.GID || !takeOver && !made {
		return err
	}
	return n.giveDir(ctx, dir, owner)
}

// makeTmp makes the pod's /tmp. Other users cannot enter its parent.
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
