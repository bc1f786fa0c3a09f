package rcctl

import (
	"errors"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A command is a function of its command line, of where it prints and, where it needs Consul, of a connection and of what it acts on.
// The functions below make actions of such functions: each is one way to begin.

// stdio is where a command reads and prints.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// stdioOf returns that of the program.
func stdioOf(c *cli.Context) *stdio {
	return &stdio{in: c.App.Reader, out: c.App.Writer, err: c.App.ErrWriter}
}

// offline is the action of a command that needs no Consul, or that opens its connection itself.
func offline(run func(*cli.Context, *stdio) error) cli.ActionFunc {
	return func(c *cli.Context) error { return run(c, stdioOf(c)) }
}

// withConn opens the store that the command line names for a command, and closes it. What was written until an error is told with it.
func withConn(c *cli.Context, std *stdio, run func(*conn) error) error {
	s, err := connect(c)
	if err != nil {
		return err
	}
	defer s.close()
	if err = errors.Join(run(s), endOutput(std.out, std.err)); err != nil {
		ended := &endedError{error: err, command: commandName(c), deeds: s.deeds}
		ended.trouble, ended.token = s.consul.TokenTrouble(err)
		return ended
	}
	return nil
}

// onConn is the action of a command that reads its arguments before it connects.
func onConn[A any](read func(*cli.Context) (A, error), run func(*cli.Context, *stdio, *conn, A) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		args, err := read(c)
		if err != nil {
			return err
		}
		std := stdioOf(c)
		return withConn(c, std, func(s *conn) error { return run(c, std, s, args) })
	}
}

// onList is the action of a command without arguments.
func onList(run func(*cli.Context, *stdio, *conn) error) cli.ActionFunc {
	return onConn(noArgs, func(c *cli.Context, std *stdio, s *conn, _ struct{}) error { return run(c, std, s) })
}

// onRC is the action of a command about the one controller it names.
func onRC(run func(*cli.Context, *stdio, *conn, store.Rec[rc.RC]) error) cli.ActionFunc {
	return onConn(rcRef.only, func(c *cli.Context, std *stdio, s *conn, ref string) error {
		found, err := s.find(c, ref)
		if err != nil {
			return err
		}
		return run(c, std, s, found)
	})
}

// onService is the action of a command about the one service it names.
func onService(run func(*cli.Context, *stdio, *conn, *record.Service) error) cli.ActionFunc {
	return onConn(serviceName.only, func(c *cli.Context, std *stdio, s *conn, name string) error {
		svc, err := s.service(c.Context, name)
		if err != nil {
			return err
		}
		return run(c, std, s, svc)
	})
}

// noArgs is the reader of a command without arguments; its flags --rc and --node, if any, are checked.
func noArgs(c *cli.Context) (none struct{}, err error) {
	if c.Args().Present() {
		return none, usagef(c, "unexpected argument %q; allowed: none", c.Args().First())
	}
	return none, checkPodFlags(c)
}
