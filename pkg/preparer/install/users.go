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

// UserRange is a range of numbers. Each is for a pod's user and group, or means a block of them.
type UserRange struct{ First, Last int }

// BlockSize is how many numbers a block has. The block b has the numbers from b*BlockSize on.
const BlockSize = 1 << 16

// Tools use these numbers for the user "nobody" and for "no number".
const (
	nobody   = 65534
	noNumber = 65535
)

var (
	errNoUser  = errors.New("all are taken by pods, stopped ones included; allow more with --user-range")
	errNoBlock = errors.New("all are taken by pods, stopped ones included; allow more with --container-user-range")
)

// errTaken means that all numbers of a range are taken.
var errTaken = errors.New("all numbers are taken")

func (u UserRange) on() bool { return u.Last > 0 }

func (u UserRange) contains(number int) bool {
	return u.on() && u.First <= number && number <= u.Last && number != nobody && number != noNumber
}

// choose returns the same number for the same name, if it is free. So another pod rarely gets the number that owns
// files which a pod has left.
func (u UserRange) choose(name string, taken map[int]bool) (int, error) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(name)) // never fails (hash.Hash)
	size := u.Last - u.First + 1
	for i := range size {
		number := u.First + (int(hash.Sum64()%uint64(size))+i)%size
		if u.contains(number) && !taken[number] {
			return number, nil
		}
	}
	return 0, errTaken
}

// users has the number of each pod, by FileName. It comes from the pod's record, or else from the owner of its files. A
// pod keeps its number as long as files of it may be left.
type users struct {
	mu    sync.Mutex
	of    map[string]user
	taken map[int]bool
}

type user struct {
	number int
	asked  int // how often the number was given or asked for
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

func (u *users) has(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.of[name].number
}

func (u *users) all() map[string]user {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.of)
}

// release makes a number free, unless it was given or asked for after the caller read it (was).
func (u *users) release(name string, was user) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of[name] == was {
		delete(u.taken, was.number)
		delete(u.of, name)
	}
}

// loadUsers also reads the owners of directories, because their pods may have no record. No record has a pod's block:
// its directories show it.
func (n *Node) loadUsers(numbers map[pod.Identity]int) {
	n.users, n.blocks = newUsers(), newUsers()
	for _, pattern := range []string{
		homesDir + "/*", tmpDir + "/" + removedDir + "/*",
		homesDir + "/" + removedDir + "/*", volumesDir + "/*/*",
	} {
		paths, _ := filepath.Glob(filepath.Join(n.cfg.Dir, filepath.FromSlash(pattern))) // the pattern is valid
		for _, path := range paths {
			rel, _ := filepath.Rel(n.cfg.Dir, path) // no error, because path is below Dir
			parts := strings.Split(rel, string(filepath.Separator))
			name := parts[1]
			if name == removedDir && len(parts) > 2 {
				name = removedOf(parts[2])
			}
			_, group, err := ownerOf(path)
			switch {
			case err != nil:
			case n.cfg.Isolation.Users.contains(group):
				n.users.give(name, group)
			case n.cfg.Isolation.Blocks.contains(group / BlockSize):
				n.blocks.give(name, group/BlockSize)
			}
		}
	}
	for id, number := range numbers {
		n.users.give(FileName(id), number)
	}
}

// Number returns the number of the pod's user and group, and chooses one if it has none. It returns 0 if pods do not
// get numbers, or all are taken; isolation then returns the reason. procs, the pod's processes, show the number if the
// record was lost.
func (n *Node) Number(id pod.Identity, procs []runtime.Status) int {
	in, name := n.cfg.Isolation.Users, FileName(id)
	if !in.on() {
		return 0
	}
	n.users.give(name, numberOf(in, procs))
	number, _ := n.users.number(in, name)
	return number
}

// blockOf returns the block of a pod with containers, and chooses one if it has none. It returns nil if this node
// cannot show images' files with other owners.
func (n *Node) blockOf(id pod.Identity) (*runtime.IDs, error) {
	in := n.cfg.Isolation.Blocks
	if !in.on() {
		return nil, nil //nolint:nilnil // no block is an answer
	}
	number, err := n.blocks.number(in, FileName(id))
	if err != nil {
		return nil, fmt.Errorf("blocks of user numbers from %d to %d: %w", in.First*BlockSize,
			(in.Last+1)*BlockSize-1, errNoBlock)
	}
	return &runtime.IDs{First: uint32(number * BlockSize), Size: BlockSize}, nil
}

// SawBlocks reads the blocks of pods from their processes, because directories do not show a block that only some of
// a pod's processes have. Call it before a block is chosen.
func (n *Node) SawBlocks(procs []runtime.Status) {
	for i := range procs {
		if c := procs[i].Spec.Container; c != nil && c.IDs != nil {
			n.blocks.give(FileName(procs[i].Spec.Pod), int(c.IDs.First/BlockSize))
		}
	}
}

// ReleaseUsers makes the numbers and blocks of pods free that the node does not know and that have no files on the
// disk.
func (n *Node) ReleaseUsers(known func() map[pod.Identity]bool) {
	numbers, blocks := n.users.all(), n.blocks.all()
	if len(numbers)+len(blocks) == 0 {
		return
	}
	for id := range known() { // called after users.all, because a pod asks for its number after it became known
		delete(numbers, FileName(id))
		delete(blocks, FileName(id))
	}
	n.release(&n.users, numbers)
	n.release(&n.blocks, blocks)
}

func (n *Node) release(of *users, all map[string]user) {
	for name, was := range all {
		if !n.leftOf(name) {
			of.release(name, was)
		}
	}
}

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

// numberOf returns the group of a pod's processes that is in the range, or 0.
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
