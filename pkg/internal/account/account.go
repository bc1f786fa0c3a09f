// Package account finds the users of this machine, those of directory services included. Our programs are built without the C
// library, so that they run on any Linux and start in half the time, and Go alone reads /etc/passwd and /etc/group only. What
// else the machine knows is asked of its own tools: getent(1) and id(1), which look where nsswitch.conf(5) says.
package account

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	patience = 10 * time.Second // that a directory service may take
	remember = 10 * time.Second // what a Directory has found
)

// notFound is how getent exits when there is no such entry.
const notFound = 2

// Account is a user of this machine.
type Account struct {
	Name   string
	UID    int
	GID    int
	Groups []int // besides GID
}

// Directory remembers for ten seconds which accounts it has found: a pod's start asks several times. The zero value is ready,
// for several goroutines.
type Directory struct {
	asked singleflight.Group

	mu    sync.Mutex
	found map[string]remembered
}

type remembered struct {
	account Account
	until   time.Time
}

// Lookup is Lookup, or what it found a moment ago. Those who ask for one account at the same time share the answer.
func (d *Directory) Lookup(name string) (Account, error) {
	d.mu.Lock()
	r, ok := d.found[name]
	d.mu.Unlock()
	if ok && time.Now().Before(r.until) {
		return r.account, nil
	}
	found, err, _ := d.asked.Do(name, func() (any, error) {
		a, err := Lookup(context.Background(), name) // one who leaves must not fail the others; it is bounded
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.found == nil {
			d.found = map[string]remembered{}
		}
		delete(d.found, name)
		if err == nil {
			d.found[name] = remembered{a, time.Now().Add(remember)}
		}
		return a, err
	})
	a, _ := found.(Account) // always one
	return a, err
}

// Lookup finds an account by its name or its number. The error wraps user.UnknownUserError where there is none.
func Lookup(ctx context.Context, name string) (Account, error) {
	if name == "" || name[0] == '-' {
		return Account{}, user.UnknownUserError(name) // no name for the tools
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a, err := passwd(ctx, name)
	if err == nil {
		err = a.join(ctx)
	}
	if err != nil {
		return Account{}, err
	}
	return a, nil
}

// Name returns the name of a user, or its number where it has none.
func Name(ctx context.Context, uid int) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	number := strconv.Itoa(uid)
	if a, err := passwd(ctx, number); err == nil {
		return a.Name
	}
	return number
}

// passwd finds an account without its groups.
func passwd(ctx context.Context, name string) (Account, error) {
	out, err := run(ctx, "getent", "passwd", name)
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return passwdFile(name)
	case errors.As(err, &exit) && exit.ExitCode() == notFound:
		return Account{}, user.UnknownUserError(name)
	case err != nil:
		return Account{}, err
	}
	fields := strings.Split(strings.TrimRight(out, "\n"), ":") // passwd(5)
	if len(fields) < 4 {
		return Account{}, fmt.Errorf("getent passwd says %q; allowed: a line of passwd(5)", out)
	}
	return numbered(fields[0], fields[2], fields[3])
}

// passwdFile looks where Go does by itself.
func passwdFile(name string) (Account, error) {
	find := user.Lookup
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		find = user.LookupId
	}
	found, err := find(name)
	var unknown user.UnknownUserIdError
	if errors.As(err, &unknown) {
		err = user.UnknownUserError(name)
	}
	if err != nil {
		return Account{}, err
	}
	return numbered(found.Username, found.Uid, found.Gid)
}

func numbered(name, uid, gid string) (Account, error) {
	a := Account{Name: name}
	var err, gidErr error
	a.UID, err = strconv.Atoi(uid)
	a.GID, gidErr = strconv.Atoi(gid)
	if err = errors.Join(err, gidErr); err != nil {
		return Account{}, fmt.Errorf("account %q: %w", name, err)
	}
	return a, nil
}

// join finds the groups of an account.
func (a *Account) join(ctx context.Context) error {
	out, err := run(ctx, "id", "-G", a.Name)
	ids := strings.Fields(out)
	if errors.Is(err, exec.ErrNotFound) {
		ids, err = (&user.User{Username: a.Name, Uid: strconv.Itoa(a.UID), Gid: strconv.Itoa(a.GID)}).GroupIds()
	}
	if err != nil {
		return fmt.Errorf("groups of %q: %w", a.Name, err)
	}
	for _, id := range ids {
		n, err := strconv.Atoi(id)
		if err != nil {
			return fmt.Errorf("groups of %q: %w", a.Name, err)
		}
		if n != a.GID {
			a.Groups = append(a.Groups, n)
		}
	}
	a.Groups = slices.Clip(a.Groups) // a Directory hands them to several, each of which may append its own
	return nil
}

// run returns what a tool of the machine prints.
func run(ctx context.Context, tool string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, tool, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", tool, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
