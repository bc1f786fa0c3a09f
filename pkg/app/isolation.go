package app

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// How far a node isolates its pods.
const (
	// IsolationAuto uses what the host supports. If the host cannot give pods users of their own, a preparer that runs
	// as root does not start pods as root.
	IsolationAuto = "auto"
	IsolationOn   = "on" // all kinds of isolation, or the preparer does not start
	IsolationOff  = "off"
)

// DefaultUserRange is above the numbers that useradd gives to people, services and their user namespaces, and that
// systemd gives to containers (systemd's UIDS-GIDS document).
const DefaultUserRange = "1900000000-1900065535"

// DefaultContainerUserRange has 2,249 blocks above DefaultUserRange.
const DefaultContainerUserRange = "2000027648-2147418111"

// Some programs read numbers above maxUser as negative numbers.
const (
	minUser = 1000
	maxUser = 1<<31 - 2
)

// ranges returns the numbers of pods' users, and the blocks of numbers of containers' users.
func (p *PreparerConfig) ranges(errs *field.Errors) (users, blocks install.UserRange) {
	switch p.Isolation {
	case IsolationAuto, IsolationOn, IsolationOff:
	default:
		errs.Add("isolation", p.Isolation, "auto, on, off")
	}
	parse := func(text string) (r install.UserRange, ok bool) {
		low, high, _ := strings.Cut(text, "-")
		first, err := strconv.Atoi(low)
		last, err2 := strconv.Atoi(high)
		return install.UserRange{First: first, Last: last},
			errors.Join(err, err2) == nil && first >= minUser && last <= maxUser && first <= last
	}
	users, ok := parse(p.UserRange)
	if !ok {
		errs.Add("user-range", p.UserRange,
			fmt.Sprintf("two numbers from %d to %d, the lower first, such as %s", minUser, maxUser, DefaultUserRange))
	}
	const size = install.BlockSize
	all, ok := parse(p.ContainerUserRange)
	if !ok || all.First%size != 0 || (all.Last+1)%size != 0 || all.First <= users.Last && users.First <= all.Last {
		errs.Add("container-user-range", p.ContainerUserRange, fmt.Sprintf("blocks of %d numbers: the first number "+
			"and the one after the last are multiples of %d; outside --user-range, such as %s", size, size,
			DefaultContainerUserRange))
	}
	return users, install.UserRange{First: all.First / size, Last: all.Last / size}
}

// isolation returns which parts of the configured isolation this host supports, and logs the missing ones once. cgroup
// is the parent in which the runtime limits processes; empty: it cannot limit them.
func (p *PreparerConfig) isolation(dir string, log obs.Logger) (in install.Isolation, cgroup string, err error) {
	var errs field.Errors
	users, blocks := p.ranges(&errs)
	if err := errs.Err(); err != nil || p.Isolation == IsolationOff {
		return in, "", err
	}
	host := isolate.Probe(cgroupName(p.Node, dir))
	in, without := plan(host, users, dir)
	if in.Limits {
		cgroup = host.Cgroup
	}
	if in.Users == users {
		without = append(without, openDir(dir, &in)...)
	}
	in.AllowRoot = p.AllowRoot
	if in.Users == users && host.Mapped(blocks.First*install.BlockSize, (blocks.Last+1)*install.BlockSize-1) {
		in.Blocks = blocks
	}
	if len(without) == 0 {
		return in, cgroup, nil
	}
	if p.Isolation == IsolationOn {
		return in, cgroup, fmt.Errorf("--isolation on: this host does not allow all of it: %s",
			strings.Join(without, "; "))
	}
	if os.Getuid() == 0 && in.Users != users {
		in.NoUsers = strings.Join(slices.DeleteFunc(slices.Clone(without),
			func(s string) bool { return !strings.HasPrefix(s, usersLack) }), "; ")
	}
	log.WithField("without", strings.Join(without, "; ")).Warn("pods are isolated only as far as this host allows")
	return in, cgroup, nil
}

const usersLack = "users: "

// plan returns the kinds of isolation to use on a host, and why not the others.
func plan(host isolate.Host, users install.UserRange, dir string) (in install.Isolation, without []string) {
	without = host.Without
	in.Limits = host.Cgroup != ""
	switch {
	case !host.Users:
		// the rest needs root, too, and has little use while pods share a user with the preparer
		return install.Isolation{}, without
	case host.Mapped(users.First, users.Last):
		in.Users = users
	default:
		without = append(without,
			fmt.Sprintf(usersLack+
				"not all numbers from %d to %d exist in this user namespace; choose others with --user-range",
				users.First, users.Last))
	}
	switch hidden := below(dir, "/tmp", "/var/tmp"); {
	case hidden != "":
		without = append(without,
			fmt.Sprintf("tmp: the data directory %s is below %s, which a private tmp would hide", dir, hidden))
	default:
		in.Tmp = host.Tmp
	}
	return in, without
}

func below(dir string, parents ...string) string {
	for _, parent := range parents {
		if rel, err := filepath.Rel(parent, dir); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return parent
		}
	}
	return ""
}

// openDir lets pods pass through the data directory, but not list it; files in it have modes of their own. If other
// users cannot pass through a parent, it clears in.Users.
func openDir(dir string, in *install.Isolation) (without []string) {
	err := os.Chmod(dir, 0o711)
	if err == nil {
		err = passable(dir)
	}
	if err != nil {
		in.Users = install.UserRange{}
		return []string{usersLack + err.Error()}
	}
	unix.Umask(0o022) // with a stricter umask, pods could not read files that are made for them
	return nil
}

func passable(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for ; ; real = filepath.Dir(real) {
		info, err := os.Stat(real)
		if err != nil {
			return err
		}
		if info.Mode()&0o001 == 0 {
			return fmt.Errorf("the data directory cannot be reached by other users: %s has mode %s; allowed: execute "+
				"permission for others, such as %s", real, info.Mode().Perm(), fs.FileMode(0o711))
		}
		if real == filepath.Dir(real) {
			return nil
		}
	}
}

// CanHaveUsers reports whether a preparer that this process starts can give its pods users. Without root it is true,
// because the preparer then needs none.
func CanHaveUsers() bool {
	errs := field.Errors{}
	all, _ := (&PreparerConfig{
		Isolation: IsolationAuto, UserRange: DefaultUserRange, ContainerUserRange: DefaultContainerUserRange,
	}).ranges(&errs)
	return os.Getuid() != 0 || isolate.Mapped(all.First, all.Last)
}

// cgroupName is the parent of a preparer's cgroups. It has a hash of the data directory, because several preparers can
// run on one machine.
func cgroupName(node, dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join("rcfarm", node+"-"+hex.EncodeToString(sum[:4]))
}
