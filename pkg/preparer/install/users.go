package install

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// UserRange holds the numbers that pods are given, each as a user and as a group of that number.
type UserRange struct{ First, Last int }

// The numbers that user-space tools use for "nobody" and for "no number".
const (
	nobody   = 65534
	noNumber = 65535
)

var errNoUser = errors.New("all are taken by pods, stopped ones included; allow more with --user-range")

func (r UserRange) on() bool { return r.Last > 0 }

func (r UserRange) contains(number int) bool {
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
		if r.contains(number) && !taken[number] {
			return number, nil
		}
	}
	return 0, fmt.Errorf("user numbers from %d to %d: %w", r.First, r.Last, errNoUser)
}

// users remembers whose a number is, by the file name of the identity: as records say, else as the owners of what is on the
// disk do. A number stays its pod's while anything that the pod wrote may be left.
type users struct {
	mu    sync.Mutex
	of    map[string]user
	taken map[int]bool
}

type user struct {
	number int
	asked  int // how often it was given or asked for
}

func newUsers() users { return users{of: map[string]user{}, taken: map[int]bool{}} }

func (u *users) give(name string, number int) {
	if number == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.of[name] = user{number, u.of[name].asked + 1}
	u.taken[number] = true
}

// number returns the pod's number, a new one when it has none.
func (u *users) number(r UserRange, name string) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	own := u.of[name]
	if own.number == 0 {
		var err error
		if own.number, err = r.choose(name, u.taken); err != nil {
			return 0, err
		}
		u.taken[own.number] = true
	}
	own.asked++
	u.of[name] = own
	return own.number, nil
}

// has returns the number that a pod has, 0 when it has none.
func (u *users) has(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.of[name].number
}

// all returns whose numbers there are.
func (u *users) all() map[string]user {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.of)
}

// release gives a number back, unless somebody has asked for it since.
func (u *users) release(name string, was user) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of[name] == was {
		delete(u.taken, was.number)
		delete(u.of, name)
	}
}

// loadUsers collects the numbers that are in use. A directory of a pod without a record still has its number.
func (n *Node) loadUsers(numbers map[pod.Identity]int) {
	n.users = newUsers()
	for _, pattern := range []string{homesDir + "/*", tmpDir + "/" + removedDir + "/*", homesDir + "/" + removedDir + "/*", volumesDir + "/*/*"} {
		paths, _ := filepath.Glob(filepath.Join(n.cfg.Dir, filepath.FromSlash(pattern))) // the pattern is well formed
		for _, path := range paths {
			rel, _ := filepath.Rel(n.cfg.Dir, path) // it was found there
			parts := strings.Split(rel, string(filepath.Separator))
			name := parts[1]
			if name == removedDir && len(parts) > 2 {
				name = removedOf(parts[2])
			}
			if _, group, err := ownerOf(path); err == nil && n.cfg.Isolation.Users.contains(group) {
				n.users.give(name, group)
			}
		}
	}
	for id, number := range numbers {
		n.users.give(FileName(id), number)
	}
}

// Number returns the number that a pod has as a user and as a group, a new one when it has none, 0 where pods have none or all are taken:
// isolation says why. procs are the pod's, whose record may have been lost.
func (n *Node) Number(id pod.Identity, procs []runtime.Status) int {
	in, name := n.cfg.Isolation.Users, FileName(id)
	if !in.on() {
		return 0
	}
	n.users.give(name, numberOf(in, procs))
	number, _ := n.users.number(in, name)
	return number
}

// ReleaseUsers gives back the numbers of pods of which neither a record, which known tells, nor anything on the disk is left.
func (n *Node) ReleaseUsers(known func() map[pod.Identity]bool) {
	all := n.users.all()
	if len(all) == 0 {
		return
	}
	for id := range known() { // asked after all: whoever is known later asks for a number later
		delete(all, FileName(id))
	}
	for name, was := range all {
		if !n.leftOf(name) {
			n.users.release(name, was)
		}
	}
}

// leftOf reports whether anything on the disk may belong to a pod's user.
func (n *Node) leftOf(name string) bool {
	for _, kind := range append([]string{volumesDir}, podDirs...) {
		if _, err := os.Lstat(filepath.Join(n.cfg.Dir, kind, name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
		entries, err := os.ReadDir(filepath.Join(n.cfg.Dir, kind, removedDir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
		if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return removedOf(e.Name()) == name }) {
			return true
		}
	}
	return false
}

// numberOf returns the number that a pod's processes have as a group, 0 when they have none.
func numberOf(in UserRange, procs []runtime.Status) int {
	for i := range procs {
		if iso := procs[i].Spec.Isolation; iso != nil {
			groups := append([]int{iso.GID}, iso.Groups...)
			if i := slices.IndexFunc(groups, in.contains); i >= 0 {
				return groups[i]
			}
		}
	}
	return 0
}
