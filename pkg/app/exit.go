package app

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Exit codes of farm and preparer. After ExitConfig a service manager need not start the daemon again, because it would
// end in the same way.
const (
	ExitDone   = 0
	ExitError  = 1
	ExitConfig = 2
)

// ExitCodes has the meaning of each exit code of the daemons, from 0 on.
var ExitCodes = [...]string{
	ExitDone:   "ended in order, by SIGTERM or SIGINT; also after `--help` and `--version`",
	ExitError:  "any other error, also a second signal; another start may succeed",
	ExitConfig: "an unknown flag, or a value that is not allowed; nothing was started; correct the command line",
}

type configError struct{ err error }

func (c *configError) Error() string { return c.err.Error() }
func (c *configError) Unwrap() error { return c.err }

// onHost are flags that name files which may be mounted later, so their values may be right at the next start.
var onHost = []string{"hooks-dir", "node-token-dir", "node-ca"}

// misconfigured makes an error in flags a configError, unless it is only about the flags onHost.
func misconfigured(err error) error {
	if all, is := errors.AsType[field.Errors](err); is &&
		!slices.ContainsFunc(all, func(e *field.Error) bool { return !slices.Contains(onHost, e.Field) }) {
		return err
	}
	return &configError{err}
}

// onUsageError keeps the library from printing its help.
func onUsageError(_ *cli.Context, err error, _ bool) error {
	return misconfigured(fmt.Errorf("%w; see --help", err))
}

func exitNowhere(*cli.Context, error) {}

// Exit prints why a daemon ended, and returns the exit code.
func Exit(stderr io.Writer, program string, err error) int {
	if Clean(err) {
		return ExitDone
	}
	fmt.Fprintf(stderr, "%s: %v\n", program, err)
	if _, is := errors.AsType[*configError](err); is {
		return ExitConfig
	}
	return ExitError
}

// CrashBySignal makes a panic, or another fatal error of the Go runtime, end the program by SIGABRT. By default it
// would end with status 2, which means a wrong command line here, and a service manager would not restart it.
func CrashBySignal() { debug.SetTraceback("crash") }
