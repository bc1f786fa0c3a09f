package preparer

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/account"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// Isolation is what keeps the node's pods apart, as far as the host allows. The zero value: they run as the preparer does.
type Isolation struct {
	Users  UserRange // each pod is one of them; zero: all run as the preparer's own user
	Tmp    bool      // each pod has a /tmp of its own
	Cgroup string    // directory of cgroup v2 below which each process has one; empty: none has
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
	}{{"users", in.Users.on()}, {"cgroup", in.Cgroup != ""}, {"tmp", in.Tmp}} {
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

// UserRange holds the numbers that pods are given, each as a user and as a group of that number.
type UserRange struct{ First, Last int }

// The numbers that user-space tools use for "nobody" and for "no number".
const (
	nobody   = 65534
	noNumber = 65535
)

var errNoUser = errors.New("all are taken by pods, stopped ones included; allow more with --user-range")

func (r UserRange) on() bool { return r.Last > 0 }

func (r UserRange) holds(number int) bool {
	return r.on() && r.First <= number && number <= r.Last && number != nobody && number != noNumber
}

// choose returns a number that is not taken: the same for the same name while that is free, so that what a pod left on the
// disk is hardly ever another's.
func (r UserRange) choose(name string, taken map[int]bool) (int, error) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(name)) // never fails (hash.Hash)
	size := r.Last - r.First + 1
	for i := range size {
		number := r.First + (int(hash.Sum64()%uint64(size))+i)%size
		if r.holds(number) && !taken[number] {
			return number, nil
		}
	}
	return 0, fmt.Errorf("user numbers from %d to %d: %w", r.First, r.Last, errNoUser)
}

// users remembers whose a number is, by the file name of the identity: as records say, else as the owners of what is on the
// disk do. A number stays its pod's while anything that the pod wrote may be left.
type users struct {
	of    map[string]int
	taken map[int]bool
}

func (u *users) give(name string, number int) {
	if number != 0 {
		u.of[name], u.taken[number] = number, true
	}
}

// number returns the pod's number, a new one when it has none.
func (u *users) number(r UserRange, name string) (int, error) {
	if number := u.of[name]; number != 0 {
		return number, nil
	}
	number, err := r.choose(name, u.taken)
	if err == nil {
		u.give(name, number)
	}
	return number, err
}

// loadUsers collects the numbers that are in use. A directory of a pod without a record still has its number.
func (p *Preparer) loadUsers() {
	p.users = users{of: map[string]int{}, taken: map[int]bool{}}
	for _, pattern := range []string{homesDir + "/*", tmpDir + "/" + removedDir + "/*", homesDir + "/" + removedDir + "/*", volumesDir + "/*/*"} {
		paths, _ := filepath.Glob(filepath.Join(p.cfg.Dir, filepath.FromSlash(pattern))) // the pattern is well formed
		for _, path := range paths {
			rel, _ := filepath.Rel(p.cfg.Dir, path) // it was found there
			parts := strings.Split(rel, string(filepath.Separator))
			name := parts[1]
			if name == removedDir && len(parts) > 2 {
				name = removedOf(parts[2])
			}
			if _, group, err := ownerOf(path); err == nil && p.cfg.Isolation.Users.holds(group) {
				p.users.give(name, group)
			}
		}
	}
	for id, e := range p.pods {
		p.users.give(fileName(id), e.rec.UID)
	}
}

// releaseUsers gives back the numbers of pods of which neither a record nor anything on the disk is left.
func (p *Preparer) releaseUsers() {
	p.mu.Lock()
	var names []string
	known := p.knownNames()
	for name := range p.users.of {
		if !known[name] {
			names = append(names, name)
		}
	}
	p.mu.Unlock()
	for _, name := range names {
		if p.leftOf(name) {
			continue
		}
		p.mu.Lock()
		if !p.knownNames()[name] { // what is there since then has been given another number, or this one
			delete(p.users.taken, p.users.of[name])
			delete(p.users.of, name)
		}
		p.mu.Unlock()
	}
}

// knownNames returns the file names of all identities that are known. The caller holds p.mu.
func (p *Preparer) knownNames() map[string]bool {
	known := make(map[string]bool, len(p.pods))
	for id := range p.pods {
		known[fileName(id)] = true
	}
	return known
}

// leftOf reports whether anything on the disk may belong to a pod's user.
func (p *Preparer) leftOf(name string) bool {
	for _, kind := range append([]string{volumesDir}, podDirs...) {
		if _, err := os.Lstat(filepath.Join(p.cfg.Dir, kind, name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
		entries, err := os.ReadDir(filepath.Join(p.cfg.Dir, kind, removedDir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
		if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return removedOf(e.Name()) == name }) {
			return true
		}
	}
	return false
}

// withUser gives a pod that is to run its number, before the record that says so is saved. Without a free one the record has
// none, and isolation says why.
func (p *Preparer) withUser(rec Record, procs []runtime.Status) Record {
	in := p.cfg.Isolation.Users
	if !in.on() || rec.UID != 0 || rec.Intent.State != pod.Running {
		return rec
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	name := fileName(rec.Intent.Identity)
	p.users.give(name, numberOf(in, procs)) // of a pod whose record was lost
	rec.UID, _ = p.users.number(in, name)
	return rec
}

// numberOf returns the number that a pod's processes have as a group, 0 when they have none.
func numberOf(in UserRange, procs []runtime.Status) int {
	for i := range procs {
		if iso := procs[i].Spec.Isolation; iso != nil {
			groups := append([]int{iso.GID}, iso.Groups...)
			if i := slices.IndexFunc(groups, in.holds); i >= 0 {
				return groups[i]
			}
		}
	}
	return 0
}

// isolation is what the hooks of a launchable run under, and its processes besides their cgroup; nil: as the preparer does.
func (p *Preparer) isolation(id pod.Identity, l *manifest.Launchable) (*runtime.Isolation, error) {
	p.mu.Lock()
	number := 0
	if e := p.pods[id]; e != nil {
		number = e.rec.UID
	}
	p.mu.Unlock()
	iso, err := p.cfg.Isolation.of(number, l, p.lookUp)
	if err != nil {
		return nil, fmt.Errorf("user of %s: %w", l.Name, err)
	}
	if iso != nil && p.cfg.Isolation.Tmp {
		iso.Tmp = p.dirOf(tmpDir, id)
	}
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
func (in Isolation) none() bool { return !in.Users.on() && !in.Tmp && in.Cgroup == "" }

// confine gives a process, besides, a cgroup of its own with the limits of its launchable.
func (in Isolation) confine(iso *runtime.Isolation, specID string, r manifest.Resources) {
	if iso == nil || in.Cgroup == "" {
		return
	}
	iso.Cgroup = filepath.Join(in.Cgroup, specID)
	iso.CPU, iso.Memory, iso.PIDs = int64(r.CPU), int64(r.Memory), r.MaxPIDs()
}

// HooksCgroup is the part of the node's cgroup that hooks are in.
const HooksCgroup = "hooks"

// confineHook gives a hook a cgroup of its own, with the limits of the launchable that it is of.
func (in Isolation) confineHook(iso *runtime.Isolation, id pod.Identity, point string, r manifest.Resources) {
	in.confine(iso, filepath.Join(HooksCgroup, fileName(id)+"."+point), r)
}

// lookUp finds an account of the node by its name, or by its number. User 0 has one name here, so that nobody gets it unawares.
func (p *Preparer) lookUp(name string) (account.Account, error) {
	found, err := p.accounts.Lookup(name)
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
func (p *Preparer) owner(v *version, l *manifest.Launchable) (*account.Account, error) {
	iso, err := p.isolation(v.id, l)
	if err != nil || !p.cfg.Isolation.Users.on() {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &account.Account{UID: iso.UID, GID: p.pods[v.id].rec.UID}, nil
}

// ownDir makes a directory and gives it to its owner; with takeOver also one that was another's, with what that one has in it.
// What is there keeps its mode; what is made is open to the whole pod.
func (p *Preparer) ownDir(ctx context.Context, dir string, owner *account.Account, takeOver bool) error {
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
	return p.giveDir(ctx, dir, owner)
}

// makeTmp makes the directory that the pod sees as /tmp. Nobody else can enter the one that it is in.
func (p *Preparer) makeTmp(id pod.Identity) error {
	if !p.cfg.Isolation.Tmp {
		return nil
	}
	dir := p.dirOf(tmpDir, id)
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
