package rcctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/store"
)

func resumeCommand() *cli.Command {
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
		Action: onList(runResume),
	})
}

func runResume(c *cli.Context, std *stdio, s *conn) error {
	var line string // what changed; empty: it is not tripped
	err := s.writing(c.Context, maxTries, func(ctx context.Context, by string) error {
		rec, err := s.Breaker.Get(ctx, store.Consistent)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return refusedf("there is no breaker below %s; a farm makes one when it runs; nothing was written", s.Keys().Prefix())
		case isCorrupt(err):
			line = "breaker: unreadable -> reset"
		case err != nil:
			return fmt.Errorf("read breaker: %w", err)
		case !rec.Value.Tripped:
			line = ""
			return nil
		default:
			line = fmt.Sprintf("breaker: tripped by %s since %s (%s) -> reset", rec.Value.By, rec.Value.Since.UTC().Format(time.RFC3339), rec.Value.Reason)
		}
		err = s.Operator.ResetBreaker(ctx, rec.Index, store.NewAudit(by, "resume", "", []string{line}))
		if err := s.did("the reset of the breaker", "rcctl audit --since 10m", err); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case line == "":
		fmt.Fprintln(std.out, "the breaker is not tripped; nothing was written")
	default:
		fmt.Fprintf(std.out, "the farms may stop pods again\n  %s\n", clean(line))
	}
	return nil
}
