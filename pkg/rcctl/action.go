package rcctl

import (
	"errors"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A command is a function of its command line and of where it prints; one that needs Consul is a function of a conn,
// which has both, and of what it acts on. onConn makes an action of such a function, and offline of one without
// Consul; the others here are onConn for a common kind of arguments. What writes does it through conn.writing
// (write.go). There are no other levels.

// stdio is where a command reads and prints.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// stdioOf returns that of the program.
func stdioOf(c *cli.Context) *stdio {
	return &stdio{in: c.App.Reader, out: c.App.Writer, err: c.App.ErrWriter}
}

// offline is the action of a command that needs no Consul.
func offline(run func(*cli.Context, *stdio) error) cli.ActionFunc {
	return func(c *cli.Context) error { return run(c, stdioOf(c)) }
}

// onConn is the action of a command that needs Consul: it reads its command line, then opens the store. What was
// written until an error is told with it, and what is wrong with the token.
func onConn[A any](read func(*cli.Context) (A, error), run func(*conn, A) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		args, err := read(c)
		if err != nil {
			return err
		}
		s, err := connect(c)
		if err != nil {
			return err
		}
		defer s.close()
		if err = errors.Join(run(s, args), endOutput(s.out, s.err)); err == nil {
			return nil
		}
		trouble, token := s.consul.TokenTrouble(err)
		return &endedError{error: err, command: commandName(c), deeds: s.deeds, trouble: trouble, token: token}
	}
}

// onList is the action of a command without arguments.
func onList(run func(*conn) error) cli.ActionFunc {
	return onConn(noArgs, func(s *conn, _ struct{}) error { return run(s) })
}

// onRC is the action of a command about the one controller it names.
func onRC(run func(*conn, store.Rec[rc.RC]) error) cli.ActionFunc {
	return onConn(rcRef.only, func(s *conn, ref string) error {
		found, err := s.find(ref)
		if err != nil {
			return err
		}
		return run(s, found)
	})
}

// onService is the action of a command about the one service it names.
func onService(run func(*conn, *record.Service) error) cli.ActionFunc {
	return onConn(serviceName.only, func(s *conn, name string) error {
		svc, err := s.service(s.Context, name)
		if err != nil {
			return err
		}
		return run(s, svc)
	})
}

// noArgs is the reader of a command without arguments; its flags --rc and --node, if any, are checked.
func noArgs(c *cli.Context) (none struct{}, err error) {
	if c.Args().Present() {
		return none, usagef(c, "unexpected argument %q; allowed: none", c.Args().First())
	}
	return none, checkPodFlags(c)
}
