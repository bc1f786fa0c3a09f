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

const maxConns = 4

// flags is a command line. conn embeds it under this name, because an embedded cli.Context would hide its
// context.Context.
type flags = cli.Context

// conn is one command that needs Consul. Its methods look up what several commands need.
type conn struct {
	*flags
	*stdio
	*store.Store
	consul *consul.Client
	deeds  []inspect.Deed // writes that were made or have an unknown outcome
}

// connect does not talk to Consul yet.
func connect(c *cli.Context) (*conn, error) {
	keys, err := store.NewKeys(c.String("prefix"))
	if err != nil {
		return nil, badFlagError(c, "--prefix", err)
	}
	cfg := consul.Config{Address: c.String("consul-addr"), TokenFile: c.String("token-file"), MaxConns: maxConns}
	client, err := consul.New(cfg)
	if err != nil {
		return nil, err
	}
	if err := client.CheckToken(); err != nil {
		client.Close()
		return nil, &usageError{
			command: commandName(c),
			err:     fmt.Errorf("--token-file or CONSUL_HTTP_TOKEN_FILE: %w; Consul was not asked", err),
		}
	}
	s := store.New(client, keys)
	s.Emulate(feature.Known.Emulated(app.Version))
	return &conn{flags: c, stdio: stdioOf(c), Store: s, consul: client}, nil
}

func badFlagError(c *cli.Context, flag string, err error) error {
	var e *field.Error
	if errors.As(err, &e) {
		err = &field.Error{Field: flag, Value: e.Value, Allowed: e.Allowed}
	}
	return &usageError{command: commandName(c), err: err}
}

// empty explains an empty list. It prints a note if the cluster record is missing, and returns an error if that record
// cannot be read.
func (s *conn) empty() error {
	_, err := s.Schema.Get(s.Context, store.Default)
	if isMissing(err) {
		s.note("nothing is stored below %s yet (--prefix)", s.Keys().Prefix())
		return nil
	}
	return err
}

func (s *conn) close() { s.consul.Close() }

// who returns the owner of the ACL token, else the user of this machine.
func (s *conn) who(ctx context.Context) (string, error) {
	name, err := s.consul.ACL.TokenName(ctx)
	if err != nil || name != "" {
		return name, err
	}
	login := account.Name(ctx, os.Getuid())
	host, err := os.Hostname()
	if err != nil {
		return login, nil //nolint:nilerr // the user's name alone will do
	}
	return login + "@" + host, nil
}

func onlyArg(c *cli.Context, what string, check func(*cli.Context, string) (string, error)) (string, error) {
	if c.NArg() > 1 {
		return "", unexpected(c, 1, "one "+what)
	}
	return check(c, c.Args().First())
}

type noun struct{ what, allowed string }

var (
	rcRef        = noun{"REF", "the name of an rc, its id, or a unique beginning of its id"}
	nodeName     = noun{"NODE", "the name of a node; rcctl nodes lists them"}
	serviceName  = noun{"SERVICE", "the name of a service; rcctl service list shows all"}
	electionName = noun{"NAME", "the name of an election; rcctl election list shows all"}
)

func (n noun) check(c *cli.Context, name string) (string, error) {
	var errs field.Errors
	if errs.CheckName("", name); name == "" || errs != nil {
		return "", badFlag(c, n.what, name, n.allowed)
	}
	return name, nil
}

func (n noun) only(c *cli.Context) (string, error) { return onlyArg(c, n.what, n.check) }

// idLength is the length of a ULID, the shortest id of a controller.
const idLength = 26

// find finds the controller that REF names, a name or the beginning of an id. Its error is notFoundf or a *usageError.
func (s *conn) find(ref string) (store.Rec[rc.RC], error) {
	named, err := s.FindRC(s.Context, ref)
	if err != nil && !isMissing(err) {
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
		ids = []string{ref} // the ids of other revisions may begin with it
	}
	if found && !slices.Contains(ids, named.Value.ID) {
		ids = append(ids, named.Value.ID)
	}
	switch len(ids) {
	case 0:
		return store.Rec[rc.RC]{}, s.noRC(ref)
	case 1:
		rec, err := s.RCs.Get(s.Context, store.Consistent, ids[0])
		if err != nil {
			return rec, fmt.Errorf("read rc %s: %w", ids[0], err)
		}
		return rec, nil
	default:
		return store.Rec[rc.RC]{}, ambiguous(s.flags, "REF", ref, "the name or id of one rc",
			ids, func(id *string) string {
				rec, err := s.RCs.Get(s.Context, store.Default, *id)
				if err != nil {
					rec.Value.Name = "(unreadable)"
				}
				return *id + "  " + rec.Value.Name
			})
	}
}

func (s *conn) noRC(ref string) error {
	text := fmt.Sprintf("no rc has the name or id %q; ", ref)
	svc, err := s.Deployed.Get(s.Context, store.Default, ref)
	switch service, _, is := rc.ParseRevisionName(ref); {
	case err == nil:
		text += "it is a service"
		if there, err := s.RCs.Exists(s.Context, svc.Value.RC); err == nil && there { // else its rollout has failed
			text += fmt.Sprintf(", and the rc of its revision %d is %s",
				svc.Value.Revision, rc.RevisionName(ref, svc.Value.Revision))
		}
		return notFoundf("%s; rcctl history %s lists its revisions", text, ref)
	case !isMissing(err):
		return fmt.Errorf("%swhether it is a service cannot be read: %w", text, err)
	case is:
		return notFoundf("%srcctl rc list shows all, and rcctl history %s what became of revisions", text, service)
	}
	return notFoundf("%srcctl rc list shows all", text)
}

const maxCandidates = 10

// ambiguous lists the first things that a name matches, a line each.
func ambiguous[V any](c *cli.Context, name, value, allowed string, found []V, line func(*V) string) error {
	text := fmt.Sprintf("%s: %q is ambiguous; allowed: %s; it matches:", name, value, allowed)
	for i := range found[:min(len(found), maxCandidates)] {
		text += "\n  " + line(&found[i])
	}
	if left := len(found) - maxCandidates; left > 0 {
		text += fmt.Sprintf("\n  and %d more", left)
	}
	return usagef(c, "%s", text)
}
