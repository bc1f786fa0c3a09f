package rcctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/internal/account"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// maxConns is how many connections one command may open.
const maxConns = 4

// flags is a command line. A conn embeds it by this name, so that its Context is the context.
type flags = cli.Context

// conn is one command that needs Consul: its command line, where it prints, and the store as it sees it. What several
// commands look up has a method, what one command does is a function of its file.
type conn struct {
	*flags
	*stdio
	*store.Store
	consul *consul.Client
	deeds  []inspect.Deed // what was written, and what may have been
}

// connect opens the store that the flags of the program name. It does not talk to Consul yet.
func connect(c *cli.Context) (*conn, error) {
	keys, err := store.NewKeys(c.String("prefix"))
	if err != nil {
		return nil, badFlagError(c, "--prefix", err)
	}
	client, err := consul.New(consul.Config{Address: c.String("consul-addr"), TokenFile: c.String("token-file"), MaxConns: maxConns})
	if err != nil {
		return nil, err
	}
	if err := client.CheckToken(); err != nil {
		client.Close()
		return nil, &usageError{command: commandName(c), err: fmt.Errorf("--token-file or CONSUL_HTTP_TOKEN_FILE: %w; nothing was asked or written", err)}
	}
	s := store.New(client, keys)
	s.Emulate(feature.Known.Emulated(app.Version))
	return &conn{flags: c, stdio: stdioOf(c), Store: s, consul: client}, nil
}

// badFlagError is a value of a flag that a package refused by its own name for it.
func badFlagError(c *cli.Context, flag string, err error) error {
	var e *field.Error
	if errors.As(err, &e) {
		err = &field.Error{Field: flag, Value: e.Value, Allowed: e.Allowed}
	}
	return &usageError{command: commandName(c), err: err}
}

// empty is asked when there is nothing to list. It tells a cluster that has nothing from a prefix where nothing was
// ever written, which it notes, and from one that the token may not read, which is an error.
func (s *conn) empty() error {
	_, err := s.Schema.Get(s.Context, store.Default)
	if errors.Is(err, store.ErrNotFound) {
		fmt.Fprintf(s.err, "rcctl: nothing is stored below %s yet (--prefix)\n", s.Keys().Prefix())
		return nil
	}
	return err
}

// close drops the connections.
func (s *conn) close() { s.consul.Close() }

// who says for the record who changes something: the owner of the ACL token, else the user of this machine.
func (s *conn) who(ctx context.Context) (string, error) {
	name, err := s.consul.ACL.TokenName(ctx)
	if err != nil || name != "" {
		return name, err
	}
	login := account.Name(ctx, os.Getuid())
	host, err := os.Hostname()
	if err != nil {
		return login, nil //nolint:nilerr // a machine without a name is no reason to refuse
	}
	return login + "@" + host, nil
}

// onlyArg returns the only argument of a command, which check looks at.
func onlyArg(c *cli.Context, what string, check func(*cli.Context, string) (string, error)) (string, error) {
	if c.NArg() > 1 {
		return "", usagef(c, "unexpected argument %q; allowed: one %s", c.Args().Get(1), what)
	}
	return check(c, c.Args().First())
}

// noun is an argument or a flag that names something.
type noun struct{ what, allowed string }

// What arguments name.
var (
	rcRef        = noun{"REF", "the name of an rc, its id, or a unique beginning of its id"}
	nodeName     = noun{"NODE", "the name of a node; rcctl nodes lists them"}
	serviceName  = noun{"SERVICE", "the name of a service; rcctl service list shows all"}
	electionName = noun{"NAME", "the name of an election; rcctl election list shows all"}
)

// check returns a name, if it can be one.
func (n noun) check(c *cli.Context, name string) (string, error) {
	var errs field.Errors
	if errs.CheckName("", name); name == "" || errs != nil {
		return "", badFlag(c, n.what, name, n.allowed)
	}
	return name, nil
}

// only returns the only argument of a command, which is such a name.
func (n noun) only(c *cli.Context) (string, error) { return onlyArg(c, n.what, n.check) }

// idLength is how long the ids of controllers are at the least: they are ULIDs, or begin with one.
const idLength = 26

// find finds the controller that REF means. It returns notFoundf, or a *usageError that lists the candidates.
func (s *conn) find(ref string) (store.Rec[rc.RC], error) {
	named, err := s.FindRC(s.Context, ref)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return store.Rec[rc.RC]{}, err
	}
	found := err == nil
	if found && len(ref) < idLength {
		return named, nil
	}
	ids, err := s.RCs.IDs(s.Context)
	if err != nil {
		return store.Rec[rc.RC]{}, err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, ref) })
	if slices.Contains(ids, ref) {
		ids = []string{ref} // those of other revisions may begin with it
	}
	if found && !slices.Contains(ids, named.Value.ID) {
		ids = append(ids, named.Value.ID)
	}
	switch len(ids) {
	case 0:
		return store.Rec[rc.RC]{}, notFoundf("no rc has the name or id %q; rcctl rc list shows all", ref)
	case 1:
		rec, err := s.RCs.Get(s.Context, store.Consistent, ids[0])
		if err != nil {
			return rec, fmt.Errorf("read rc %s: %w", ids[0], err)
		}
		return rec, nil
	default:
		return store.Rec[rc.RC]{}, ambiguous(s.flags, "REF", ref, "what means one rc only, this means:", ids, func(id *string) string {
			rec, err := s.RCs.Get(s.Context, store.Default, *id)
			if err != nil {
				rec.Value.Name = "(unreadable)"
			}
			return *id + "  " + rec.Value.Name
		})
	}
}

// maxCandidates bounds how many candidates an ambiguous name lists.
const maxCandidates = 10

// ambiguous is a name that means more than one thing: what would mean one, and the candidates, a line each.
func ambiguous[V any](c *cli.Context, name, value, allowed string, found []V, line func(*V) string) error {
	for i := range found[:min(len(found), maxCandidates)] {
		allowed += "\n  " + line(&found[i])
	}
	if left := len(found) - maxCandidates; left > 0 {
		allowed += fmt.Sprintf("\n  and %d more", left)
	}
	return badFlag(c, name, value, allowed)
}
