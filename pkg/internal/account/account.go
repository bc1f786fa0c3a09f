// Package account finds the users of this machine, including users from directory services. Without the C library, with
// which our programs are not built, Go finds only users in /etc/passwd and /etc/group. So this package calls getent(1)
// and id(1), which look in all places that nsswitch.conf(5) names.
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
	patience = 10 * time.Second // how long the package waits for a directory service
	remember = 10 * time.Second // how long a Directory keeps an answer
)

// notFound is the exit status of getent if there is no such entry.
const notFound = 2

// Account is a user of this machine.
type Account struct {
	Name   string
	UID    int
	GID    int
	Groups []int // the user's other groups, without GID
}

// Directory keeps accounts for ten seconds, because the start of a pod looks for the same account several times. The
// zero value is ready. It is safe for concurrent use.
type Directory struct {
	asked singleflight.Group

	mu    sync.Mutex
	found map[string]remembered
}

type remembered struct {
	account Account
	until   time.Time
}

// Lookup is the function Lookup with stored results. Concurrent calls for one account share one call.
func (d *Directory) Lookup(name string) (Account, error) {
	d.mu.Lock()
	r, ok := d.found[name]
	d.mu.Unlock()
	if ok && time.Now().Before(r.until) {
		return r.account, nil
	}
	found, err, _ := d.asked.Do(name, func() (any, error) {
		// Lookup has its own time limit. It must not end with the context of one of the callers that share it.
		a, err := Lookup(context.Background(), name)
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
	a, _ := found.(Account) // found is always an Account
	return a, err
}

// Lookup finds an account by its name or its number. If there is none, the error wraps user.UnknownUserError.
func Lookup(ctx context.Context, name string) (Account, error) {
	if name == "" || name[0] == '-' {
		return Account{}, user.UnknownUserError(name) // the tools would not read it as a name
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

// Name returns the name of a user, or its number if it has no name.
func Name(ctx context.Context, uid int) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	number := strconv.Itoa(uid)
	if a, err := passwd(ctx, number); err == nil {
		return a.Name
	}
	return number
}

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

// passwdFile is for machines without getent.
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
	a.Groups = slices.Clip(a.Groups) // several callers of a Directory get this slice, and each may append to it
	return nil
}

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
