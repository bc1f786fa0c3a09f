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
	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const (
	exitDone = iota
	exitError
	exitUsage
	exitNotFound
	exitRefused
	exitWait
	exitChanges
)

// ExitCodes has the meaning of each exit code, from 0 on.
var ExitCodes = [...]string{
	exitDone:     "done (also: there was nothing to do)",
	exitError:    "error, such as no answer from Consul; the message says whether anything was written",
	exitUsage:    "usage or invalid input; nothing was written",
	exitNotFound: "not found",
	exitRefused:  "refused because of the present state, or because somebody else changed it meanwhile",
	exitWait: "written, but --wait ended before the goal was reached (time limit, signal, or halted), or a " +
		"rollout failed",
	exitChanges: "there are changes: rcctl plan, diff -f, and apply --dry-run",
}

func exitCodes() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for code, meaning := range ExitCodes {
		fmt.Fprintf(&b, "  %d  %s\n", code, meaning)
	}
	return b.String()
}

type usageError struct {
	command string // full name
	err     error
}

func (u *usageError) Error() string { return u.command + ": " + u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

func usagef(c *cli.Context, format string, args ...any) error {
	return &usageError{command: commandName(c), err: fmt.Errorf(format, args...)}
}

// unexpected is about a surplus argument, whose index is n.
func unexpected(c *cli.Context, n int, allowed string) error {
	return usagef(c, "unexpected argument %q; allowed: %s", c.Args().Get(n), allowed)
}

func badFlag(c *cli.Context, name, value, allowed string) error {
	return &usageError{command: commandName(c), err: badValue(name, value, allowed)}
}

func badOption(c *cli.Context, name, allowed string) error {
	return badFlag(c, "--"+name, c.String(name), allowed)
}

func badValue(name, value, allowed string) *field.Error {
	e := &field.Error{Field: name, Allowed: allowed}
	if value != "" {
		e.Value = value
	}
	return e
}

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

// inputError is about an invalid document. Each mistake gets a line.
type inputError struct {
	source string // file name
	err    error
}

func (i *inputError) Error() string { return i.source + ": " + i.err.Error() }
func (i *inputError) Unwrap() error { return i.err }

// codedError has an exit code of its own. Its text has what to do; if it is empty, nothing is printed.
type codedError struct {
	code int
	text string
}

func (c *codedError) Error() string { return c.text }

// Is matches store.ErrNotFound for the exit code of things that do not exist.
func (c *codedError) Is(target error) bool {
	return c.code == exitNotFound && target == store.ErrNotFound
}

func refusedf(format string, args ...any) error {
	return &codedError{code: exitRefused, text: fmt.Sprintf(format, args...)}
}

func unwrittenf(format string, args ...any) error {
	return refusedf("%s; nothing was written", fmt.Sprintf(format, args...))
}

func notFoundf(format string, args ...any) error {
	return &codedError{code: exitNotFound, text: fmt.Sprintf(format, args...)}
}

// waitEndedf is for a wait that ended before its goal. The change itself was written.
func waitEndedf(format string, args ...any) error {
	return &codedError{code: exitWait, text: fmt.Sprintf(format, args...)}
}

const maxErrorLines = 50

func (s *stdio) report(err error) int {
	if err == nil {
		return exitDone
	}
	code := printError(s, err)
	for _, line := range writtenBy(err, code) {
		fmt.Fprintln(s.err, line)
	}
	return code
}

// endedError has what a command had written when it failed.
type endedError struct {
	error
	command string // full name
	deeds   []inspect.Deed
	trouble consul.TokenTrouble // what is wrong with the token, if that is the cause
	token   string              // where the token comes from
}

func (e *endedError) Unwrap() error { return e.error }

// writtenBy returns no lines if the error itself has what was written.
func writtenBy(err error, code int) []string {
	var ended *endedError
	if !errors.As(err, &ended) || !writes(ended.command) {
		return nil
	}
	deeds := ended.deeds
	switch code {
	case exitError:
		return inspect.Written(deeds)
	case exitWait: // its text has what was written for certain
		deeds = slices.DeleteFunc(slices.Clone(deeds), func(d inspect.Deed) bool { return !d.Unknown })
	}
	if len(deeds) == 0 {
		return nil
	}
	return inspect.Written(deeds)
}

func printError(std *stdio, err error) int {
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
			std.note("%s", err.Error())
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
	std.note("%s", err.Error())
	switch {
	case closed != nil, behind != nil:
		return exitRefused
	case errors.As(err, &invalid):
		return exitUsage
	case errors.As(err, &unnamed), errors.Is(err, store.ErrConflict):
		return exitRefused
	case isMissing(err):
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
		"apply", "create", "scale", "disable", "enable", "delete", "drain", "undrain", "cordon", "uncordon", "label",
		"sweep", "forget", "resume", "release-hold", "set", "unset", "deploy", "pause", "promote", "abort", "rollback",
		"scale-request", "yield", "pin",
	}, words[len(words)-1])
}

func hintFor(err error) string {
	var away *consul.AwayError
	var ended *endedError
	var source *plan.SourceError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errInterrupted):
		return ""
	case errors.As(err, &source) && errors.Is(err, deploy.ErrDenied):
		return "docker login writes credentials of a registry; --registry-config names another file with them"
	case errors.As(err, &source):
		return "a plan needs the digest of each artifact: correct its url or ref, or write its digest into the document"
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

func awayHint(away *consul.AwayError) string {
	var certificate *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(away, &certificate):
		return "rcctl does not trust the certificate of that Consul; set CONSUL_CACERT to the file with the " +
			"certificates of its CA"
	case errors.As(away, &plain):
		return "the server there answers without TLS; to use no TLS either: --consul-addr http://HOST:PORT, with " +
			"CONSUL_HTTP_SSL unset"
	default:
		return "is a Consul agent running there? --consul-addr or CONSUL_HTTP_ADDR name another"
	}
}

func tokenHint(trouble consul.TokenTrouble, token string) string {
	const name = "name a file with %s: --token-file or CONSUL_HTTP_TOKEN_FILE"
	switch trouble {
	case consul.TokenMissing:
		return "Consul requires a token, and none was given; " + fmt.Sprintf(name, "one")
	case consul.TokenUnknown:
		return "Consul does not know " + token + ": it was deleted, has expired or is for another Consul; " +
			fmt.Sprintf(name, "another")
	case consul.TokenLacks:
		return token + " lacks a permission; rcctl acl policy operator prints the rules that an operator's token needs"
	case consul.TokenFine:
	}
	return ""
}
