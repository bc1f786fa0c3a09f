package rcctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (t *tool) farmsCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "farms", Usage: "list the living farms and the rcs that each owns",
		UsageText: "rcctl farms [-o table|wide|json|yaml]",
		Description: `A farm is in the list for as long as its session with Consul lives. OWNED is how many rcs it owns, and -o wide lists
them; a lone id is one whose record cannot be read. ADDRESS is that of its debug server, on its own machine.
HEARD is how long ago it wrote last; one that is silent has not written as it should: Consul may refuse its token.
SELECTOR says which rcs it works on; without one it works on all.

Examples:
  rcctl farms
  rcctl farms -o wide
  rcctl farms -o json | jq 'map(.owned) | add'
  rcctl farms -o json | jq -r '.[] | select(any(.owned_rcs[]; .name == "web")) | .id'`,
		Flags:  []cli.Flag{wideOutputFlag()},
		Action: t.farms,
	})
}

func (t *tool) farms(c *cli.Context) error {
	out, s, err := t.connectToListWide(c)
	if err != nil {
		return err
	}
	defer s.close()
	members, corrupt, err := s.ListFarms(c.Context)
	if err != nil {
		return err
	}
	owners, err := s.LockOwners(c.Context)
	if err != nil {
		return err
	}
	ids, err := s.ListRCIDs(c.Context)
	if err != nil {
		return err
	}
	var names map[string]string
	if out != formats[0] { // else the keys of the records are enough
		var bad []error
		if names, bad, err = s.allNames(c.Context); err != nil {
			return err
		}
		corrupt = append(corrupt, bad...)
	}
	heard, _, err := s.HeardOf(c.Context)
	if err != nil {
		return err
	}
	views, free := inspect.JoinFarms(values(members), owners, ids, names)
	now := time.Now()
	for i := range views {
		views[i].Heard, views[i].Silent = inspect.HeardView(heard, views[i].ID, true, now)
	}
	if len(views) == 0 {
		if err := s.empty(c.Context, t.err); err != nil {
			return err
		}
	}
	if err := t.printWide(out, views, func(w io.Writer, wide bool) error { return writeFarms(w, views, now, wide) }); err != nil {
		return err
	}
	for i := range views {
		if views[i].Silent {
			t.noteSilent("farm "+views[i].ID, *views[i].Heard, now)
		}
	}
	if free > 0 {
		fmt.Fprintf(t.err, "rcctl: %d of %d rcs have no owner; rcctl rc list shows which are Unclaimed\n", free, len(ids))
	}
	return t.warn(corrupt)
}

func writeFarms(w io.Writer, views []inspect.FarmView, now time.Time, wide bool) error {
	if len(views) == 0 {
		_, err := fmt.Fprintln(w, "no farms; start one: farm --id farm-1")
		return err
	}
	tb := table{header: []string{"ID", "HEARD", "OWNED", "VERSION", "EMULATES", "ADDRESS", "SELECTOR"}, paint: -1}
	if wide {
		tb.header = append(tb.header, "RCS")
	}
	for _, v := range views {
		said := heardText(v.Heard, now)
		if v.Silent {
			said = "silent " + said
		}
		row := []string{v.ID, said, fmt.Sprint(v.Owned), v.Version, v.EmulationVersion, v.Address, v.RCSelector}
		if wide {
			row = append(row, ownedText(v.OwnedRCs))
		}
		tb.rows = append(tb.rows, row)
	}
	return tb.write(w, false)
}

func ownedText(rcs []inspect.OwnedRC) string {
	names := make([]string, len(rcs))
	for i, r := range rcs {
		names[i] = cmp.Or(r.Name, r.ID)
	}
	return strings.Join(names, ",")
}

// farmCommand groups the commands about the farms as a whole.
func (t *tool) farmCommand() *cli.Command {
	return &cli.Command{
		Name: "farm", Usage: "let the farms go on: after the mass-stop breaker tripped, without a machine that does not answer",
		UsageText:       "rcctl farm COMMAND [flags]",
		HideHelpCommand: true,
		Action:          t.group,
		OnUsageError:    onUsageError,
		Subcommands:     []*cli.Command{t.resumeCommand(), t.releaseHoldCommand()},
	}
}

func (t *tool) resumeCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "resume", Usage: "reset the mass-stop breaker",
		UsageText: "rcctl farm resume",
		Description: `A farm that is about to have stopped more than half of its pods within a minute, and 10 at least, trips the breaker:
from then on no farm stops anything. Find out why first (rcctl audit --since 10m). What is not meant must be taken
back before, as it goes on when the breaker is reset. For what is meant, give the same command again with
--allow-mass-stop, or the breaker may trip again. It also mends a breaker record that cannot be read.

Examples:
  rcctl audit --since 10m
  rcctl rc scale web 1 --allow-mass-stop && rcctl farm resume`,
		Action: t.resume,
	})
}

func (t *tool) resume(c *cli.Context) error {
	if c.Args().Present() {
		return usagef(c, "unexpected argument %q; allowed: none", c.Args().First())
	}
	s, err := t.connect(c)
	if err != nil {
		return err
	}
	defer s.close()
	line, err := s.resume(c.Context)
	if err != nil {
		return err
	}
	if line == "" {
		fmt.Fprintln(t.out, "the breaker is not tripped; nothing was written")
		return nil
	}
	fmt.Fprintf(t.out, "the farms may stop pods again\n  %s\n", clean(line))
	return nil
}

// resume resets the breaker, and returns what changed: nothing where it is not tripped.
func (s *conn) resume(ctx context.Context) (line string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, writeLimit, errWriteLimit)
	defer cancel()
	author, err := s.who(ctx)
	if err != nil {
		return "", err
	}
	for try := 1; ; try++ {
		rec, err := s.ReadBreaker(ctx)
		var corrupt *store.CorruptError
		switch {
		case errors.Is(err, store.ErrNotFound):
			return "", refusedf("there is no breaker below %s; a farm makes one when it runs; nothing was written", s.Keys().Prefix())
		case errors.As(err, &corrupt):
			line = "breaker: unreadable -> reset"
		case err != nil:
			return "", fmt.Errorf("read breaker: %w", err)
		case !rec.Value.Tripped:
			return "", nil
		default:
			line = fmt.Sprintf("breaker: tripped by %s since %s (%s) -> reset", rec.Value.By, rec.Value.Since.UTC().Format(time.RFC3339), rec.Value.Reason)
		}
		err = s.ResetBreaker(ctx, rec.Index, store.NewAudit(author, "resume", "", []string{line}))
		if errors.Is(err, store.ErrConflict) && try < maxTries {
			continue
		}
		if err := s.did("the reset of the breaker", "rcctl audit --since 10m", err); err != nil {
			return "", fmt.Errorf("resume: %w", err)
		}
		return line, nil
	}
}
