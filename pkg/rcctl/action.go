package rcctl

import (
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A command is a function. If it needs no Consul, offline makes its action, else onConn. onList, onRC, onService and
// onNode are onConn for common kinds of arguments. A command writes through conn.writing.

type stdio struct {
	in       io.Reader
	out, err io.Writer
}

func (s *stdio) printLine(format string, args ...any) {
	_, _ = io.WriteString(s.out, fmt.Sprintf(format, args...)+"\n")
}

// note prints a line on standard error, so that it is apart from the answer.
func (s *stdio) note(format string, args ...any) {
	fmt.Fprintln(s.err, "rcctl: "+fmt.Sprintf(format, args...))
}

func stdioOf(c *cli.Context) *stdio {
	return &stdio{in: c.App.Reader, out: c.App.Writer, err: c.App.ErrWriter}
}

func offline(run func(*cli.Context, *stdio) error) cli.ActionFunc {
	return func(c *cli.Context) error { return run(c, stdioOf(c)) }
}

// onConn opens the store for a command. It adds to the command's error what was written, and what is wrong with the
// token.
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

func onList(run func(*conn) error) cli.ActionFunc {
	return onConn(noArgs, func(s *conn, _ struct{}) error { return run(s) })
}

func onRC(run func(*conn, store.Rec[rc.RC]) error) cli.ActionFunc {
	return onConn(rcRef.only, func(s *conn, ref string) error {
		found, err := s.find(ref)
		if err != nil {
			return err
		}
		return run(s, found)
	})
}

func onService(run func(*conn, *record.Service) error) cli.ActionFunc {
	return onConn(serviceName.only, func(s *conn, name string) error {
		svc, err := s.service(s.Context, name)
		if err != nil {
			return err
		}
		return run(s, svc)
	})
}

// noArgs also checks the flags --rc and --node.
func noArgs(c *cli.Context) (none struct{}, err error) {
	if c.Args().Present() {
		return none, unexpected(c, 0, "none")
	}
	return none, checkPodFlags(c)
}
