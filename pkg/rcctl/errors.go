package rcctl

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Exit codes.
const (
	exitDone = iota
	exitError
	exitUsage
	exitNotFound
	exitRefused
	exitWait
	exitChanges
)

// ExitCodes say what each exit code means, from 0 on.
var ExitCodes = [...]string{
	exitDone:     "done (also: there was nothing to do)",
	exitError:    "error, such as Consul not answering; the message says if something was written",
	exitUsage:    "usage or invalid input; nothing was written",
	exitNotFound: "not found",
	exitRefused:  "refused by the present state, or changed by somebody else meanwhile",
	exitWait:     "written, but --wait ended before the goal was reached (time limit, signal, or halted), or a rollout failed",
	exitChanges:  "there are changes: rcctl plan, diff -f, and apply --dry-run",
}

// exitCodes is the part about them of the program's help.
func exitCodes() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for code, meaning := range ExitCodes {
		fmt.Fprintf(&b, "  %d  %s\n", code, meaning)
	}
	return b.String()
}

// usageError is a command line that makes no sense.
type usageError struct {
	command string // full name
	err     error
}

func (e *usageError) Error() string { return e.command + ": " + e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(c *cli.Context, format string, args ...any) error {
	return &usageError{command: commandName(c), err: fmt.Errorf(format, args...)}
}

// badFlag is a flag or an argument with a value that is not allowed.
func badFlag(c *cli.Context, name, value, allowed string) error {
	return &usageError{command: commandName(c), err: badValue(name, value, allowed)}
}

// badValue is a value that is missing or not allowed.
func badValue(name, value, allowed string) *field.Error {
	e := &field.Error{Field: name, Allowed: allowed}
	if value != "" {
		e.Value = value
	}
	return e
}

// asUsage makes an error about a field one about the command line.
func asUsage(c *cli.Context, err error) error {
	if bad, is := errors.AsType[*field.Error](err); is {
		return &usageError{command: commandName(c), err: bad}
	}
	return err
}

func commandName(c *cli.Context) string {
	if c.Command == nil || c.Command.HelpName == "" {
		return c.App.Name
	}
	return c.Command.HelpName
}

// inputError is a document that makes no sense. Each of its mistakes gets a line of its own.
type inputError struct {
	source string // file name
	err    error
}

func (e *inputError) Error() string { return e.source + ": " + e.err.Error() }
func (e *inputError) Unwrap() error { return e.err }

// codedError is an error with an exit code of its own. Its text says what to do; empty: nothing is said.
type codedError struct {
	code int
	text string
}

func (e *codedError) Error() string { return e.text }

// Is matches store.ErrNotFound where something is named that is not there.
func (e *codedError) Is(target error) bool {
	return e.code == exitNotFound && target == store.ErrNotFound
}

// refusedf is an act that the present state forbids.
func refusedf(format string, args ...any) error {
	return &codedError{code: exitRefused, text: fmt.Sprintf(format, args...)}
}

// notFoundf is a REF or name that leads nowhere.
func notFoundf(format string, args ...any) error {
	return &codedError{code: exitNotFound, text: fmt.Sprintf(format, args...)}
}

// waitEndedf is a wait that ended too early, after the change itself was written.
func waitEndedf(format string, args ...any) error {
	return &codedError{code: exitWait, text: fmt.Sprintf(format, args...)}
}

// maxErrorLines bounds how many mistakes of one document are listed.
const maxErrorLines = 50

// report prints an error, says what was written all the same, and returns the exit code.
func (std *stdio) report(err error) int {
	if err == nil {
		return exitDone
	}
	code := tell(std, err)
	for _, line := range writtenBy(err, code) {
		fmt.Fprintln(std.err, line)
	}
	return code
}

// endedError is the error of a command that had a connection, with what it had written by then.
type endedError struct {
	error
	command string // full name
	deeds   []inspect.Deed
	trouble consul.TokenTrouble // what Consul refused to the token, if it is that
	token   string              // where it comes from
}

func (e *endedError) Unwrap() error { return e.error }

// writtenBy says what a command that failed has written, where the error itself does not.
func writtenBy(err error, code int) []string {
	var ended *endedError
	if !errors.As(err, &ended) || !writes(ended.command) {
		return nil
	}
	deeds := ended.deeds
	switch code {
	case exitError:
		return inspect.Written(deeds)
	case exitWait: // it says what is written
		deeds = slices.DeleteFunc(slices.Clone(deeds), func(d inspect.Deed) bool { return !d.Unknown })
	}
	if len(deeds) == 0 {
		return nil
	}
	return inspect.Written(deeds)
}

// tell prints an error and returns the exit code.
func tell(std *stdio, err error) int {
	var (
		usage   *usageError
		input   *inputError
		coded   *codedError
		invalid *field.Error
		unnamed *store.UnnamedError
		closed  *feature.ClosedError
		behind  *feature.BehindError
	)
	switch {
	case errors.As(err, &coded):
		if coded.text != "" {
			fmt.Fprintln(std.err, "rcctl: "+err.Error())
		}
		return coded.code
	case errors.As(err, &input):
		for _, line := range inputLines(input) {
			fmt.Fprintln(std.err, line)
		}
		fmt.Fprintln(std.err, "nothing was written")
		return exitUsage
	case errors.As(err, &usage):
		fmt.Fprintln(std.err, err)
		if writes(usage.command) {
			fmt.Fprint(std.err, "nothing was written; ")
		}
		fmt.Fprintf(std.err, "see %s --help\n", usage.command)
		return exitUsage
	}
	switch {
	case errors.As(err, &closed):
		err = closed
	case errors.As(err, &behind):
		err = behind
	}
	fmt.Fprintln(std.err, "rcctl: "+err.Error())
	switch {
	case closed != nil, behind != nil:
		return exitRefused
	case errors.As(err, &invalid):
		return exitUsage
	case errors.As(err, &unnamed), errors.Is(err, store.ErrConflict):
		return exitRefused
	case errors.Is(err, store.ErrNotFound):
		return exitNotFound
	}
	if hint := hintFor(err); hint != "" {
		fmt.Fprintln(std.err, hint)
	}
	return exitError
}

func inputLines(e *inputError) []string {
	var all field.Errors
	if !errors.As(e.err, &all) {
		return []string{e.Error()}
	}
	lines := field.Each(all, func(one *field.Error) string { return e.source + ": " + one.Error() })
	if len(lines) > maxErrorLines {
		left := len(lines) - maxErrorLines
		lines = append(lines[:maxErrorLines], fmt.Sprintf("%s: and %d more mistakes", e.source, left))
	}
	return lines
}

// writes reports whether a command changes anything when it succeeds.
func writes(command string) bool {
	words := strings.Fields(command)
	return slices.Contains([]string{
		"apply", "create", "scale", "disable", "enable", "delete", "drain", "undrain", "cordon", "uncordon", "label", "sweep", "forget", "resume",
		"release-hold", "set", "unset", "deploy", "pause", "promote", "abort", "rollback",
	}, words[len(words)-1])
}

func hintFor(err error) string {
	var away *consul.AwayError
	var ended *endedError
	var source *plan.SourceError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errInterrupted):
		return ""
	case errors.As(err, &source):
		return "a plan needs the digest of each artifact: mend its url, or write its sha256 into the document"
	case errors.As(err, &away):
		return awayHint(away)
	case consul.NoLeader(err):
		return "Consul's servers have no leader; look with: consul operator raft list-peers"
	case errors.As(err, &ended):
		return tokenHint(ended.trouble, ended.token)
	default:
		return ""
	}
}

// awayHint says what may be wrong with a Consul that does not answer.
func awayHint(away *consul.AwayError) string {
	var certificate *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(away, &certificate):
		return "the certificate of that Consul is not believed; CONSUL_CACERT names the file with those that vouch for it"
	case errors.As(away, &plain):
		return "what listens there answers without TLS; to ask it so: --consul-addr http://HOST:PORT, without CONSUL_HTTP_SSL"
	default:
		return "is a Consul agent running there? --consul-addr or CONSUL_HTTP_ADDR name another"
	}
}

// tokenHint says what is wrong with the token that Consul refused.
func tokenHint(trouble consul.TokenTrouble, token string) string {
	const name = "name a file with %s: --token-file or CONSUL_HTTP_TOKEN_FILE"
	switch trouble {
	case consul.TokenMissing:
		return "no token was given, and this Consul asks for one; " + fmt.Sprintf(name, "one")
	case consul.TokenUnknown:
		return "Consul does not know " + token + ": it was deleted, has expired or is for another Consul; " + fmt.Sprintf(name, "another")
	case consul.TokenLacks:
		return token + " lacks a right; all that an operator's token needs: rcctl acl policy operator"
	case consul.TokenFine:
	}
	return ""
}
