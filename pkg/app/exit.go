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

// The exit codes of farm and preparer. A service manager need not start a daemon again after ExitConfig: it would end
// in the same way.
const (
	ExitDone   = 0
	ExitError  = 1
	ExitConfig = 2
)

// ExitCodes say what each exit code of the daemons means, from 0 on.
var ExitCodes = [...]string{
	ExitDone:   "ended in order, by SIGTERM or SIGINT; also after `--help` and `--version`",
	ExitError:  "any other error, also at a second signal; another start may mend it",
	ExitConfig: "a flag that is not there, or not allowed; nothing was started, and only another command line mends it",
}

// configError is an error that only another command line mends.
type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// onHost are the flags that are wrong because of what is on the machine, such as a file system that is mounted later.
var onHost = []string{"hooks-dir", "node-token-dir", "node-ca"}

// misconfigured marks an error in the daemon's flags. An error about something on the machine is not marked, because it
// may be gone at the next start.
func misconfigured(err error) error {
	if all, is := errors.AsType[field.Errors](err); is && !slices.ContainsFunc(all, func(e *field.Error) bool { return !slices.Contains(onHost, e.Field) }) {
		return err
	}
	return &configError{err}
}

// onUsageError keeps the library from printing its help: Exit prints the error, and nothing else.
func onUsageError(_ *cli.Context, err error, _ bool) error {
	return misconfigured(fmt.Errorf("%w; see --help", err))
}

// exitNowhere keeps the library from ending the program.
func exitNowhere(*cli.Context, error) {}

// Exit says why a daemon ended, in one line where the error is one, and returns the exit code.
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

// CrashBySignal makes a panic, and any other fatal error of the Go runtime, end the program by SIGABRT. By default such
// an error ends it with status 2. Here 2 means a wrong command line, and a service manager may then not restart it.
func CrashBySignal() { debug.SetTraceback("crash") }
