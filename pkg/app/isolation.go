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

// How much a node keeps its pods apart.
const (
	IsolationAuto = "auto" // as far as the host allows; a preparer that is root starts no pod as root in place of a user of its own
	IsolationOn   = "on"   // fully, or the preparer does not start
	IsolationOff  = "off"
)

// DefaultUserRange is above what useradd gives to people, services and their user namespaces, and above what systemd gives to
// containers (systemd's UIDS-GIDS document).
const DefaultUserRange = "1900000000-1900065535"

// Bounds of a user range. Above the upper one lie numbers that some programs take for negative.
const (
	minUser = 1000
	maxUser = 1<<31 - 2
)

func (c *PreparerConfig) users(errs *field.Errors) install.UserRange {
	switch c.Isolation {
	case IsolationAuto, IsolationOn, IsolationOff:
	default:
		errs.Add("isolation", c.Isolation, "auto, on, off")
	}
	low, high, _ := strings.Cut(c.UserRange, "-")
	first, err := strconv.Atoi(low)
	last, err2 := strconv.Atoi(high)
	if errors.Join(err, err2) != nil || first < minUser || last > maxUser || first > last {
		errs.Add("user-range", c.UserRange, fmt.Sprintf("two numbers from %d to %d, the lower first, such as %s", minUser, maxUser, DefaultUserRange))
	}
	return install.UserRange{First: first, Last: last}
}

// isolation finds out what this host allows of what was asked for, and says once what it does not. cgroup is where the runtime holds
// processes to limits; empty: it cannot.
func (c *PreparerConfig) isolation(dir string, log obs.Logger) (in install.Isolation, cgroup string, err error) {
	var errs field.Errors
	users := c.users(&errs)
	if err := errs.Err(); err != nil || c.Isolation == IsolationOff {
		return in, "", err
	}
	host := isolate.Probe(cgroupName(c.Node, dir))
	in, without := plan(host, users, dir)
	if in.Limits {
		cgroup = host.Cgroup
	}
	if in.Users == users {
		without = append(without, openDir(dir, &in)...)
	}
	in.AllowRoot = c.AllowRoot
	if len(without) == 0 {
		return in, cgroup, nil
	}
	if c.Isolation == IsolationOn {
		return in, cgroup, fmt.Errorf("--isolation on: this host does not allow all of it: %s", strings.Join(without, "; "))
	}
	if os.Getuid() == 0 && in.Users != users {
		in.NoUsers = strings.Join(slices.DeleteFunc(slices.Clone(without), func(s string) bool { return !strings.HasPrefix(s, usersLack) }), "; ")
	}
	log.WithField("without", strings.Join(without, "; ")).Warn("pods are isolated only as far as this host allows")
	return in, cgroup, nil
}

// usersLack begins the reasons for which pods cannot have users of their own.
const usersLack = "users: "

// plan decides what is used of what a host offers, and why not all of it is.
func plan(host isolate.Host, users install.UserRange, dir string) (in install.Isolation, without []string) {
	without = host.Without
	in.Limits = host.Cgroup != ""
	switch {
	case !host.Users:
		return install.Isolation{}, without // the rest needs root too, and is of little use while pods share a user with it
	case host.Mapped(users.First, users.Last):
		in.Users = users
	default:
		without = append(without, fmt.Sprintf(usersLack+"not all numbers from %d to %d exist in this user namespace; choose others with --user-range", users.First, users.Last))
	}
	switch hidden := below(dir, "/tmp", "/var/tmp"); {
	case hidden != "":
		without = append(without, fmt.Sprintf("tmp: the data directory %s is below %s, which a private tmp would hide", dir, hidden))
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

// openDir lets pods pass through the data directory, without letting them list it: what is in it has modes of its own.
// Where a parent keeps them out, they stay without users of their own.
func openDir(dir string, in *install.Isolation) (without []string) {
	err := os.Chmod(dir, 0o711)
	if err == nil {
		err = passable(dir)
	}
	if err != nil {
		in.Users = install.UserRange{}
		return []string{usersLack + err.Error()}
	}
	unix.Umask(0o022) // a stricter one would keep pods out of what is made for them
	return nil
}

// passable reports which directory on the way keeps other users out.
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
			return fmt.Errorf("the data directory cannot be reached by other users: %s has mode %s; allowed: execute permission for others, such as %s",
				real, info.Mode().Perm(), fs.FileMode(0o711))
		}
		if real == filepath.Dir(real) {
			return nil
		}
	}
}

// CanHaveUsers reports whether a preparer that this process starts can give its pods users of their own, or need not, because
// it is not root.
func CanHaveUsers() bool {
	errs := field.Errors{}
	all := (&PreparerConfig{Isolation: IsolationAuto, UserRange: DefaultUserRange}).users(&errs)
	return os.Getuid() != 0 || isolate.Mapped(all.First, all.Last)
}

// cgroupName is the parent of the cgroups of a preparer's pods. Several may run on one machine, each in its own directory.
func cgroupName(node, dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join("rcfarm", node+"-"+hex.EncodeToString(sum[:4]))
}
