package rcctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func electionYieldCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "yield", Usage: "have the leader give way to another candidate",
		UsageText: "rcctl election yield NAME",
		Description: `The leader ends what it is at, and another candidate leads. The one that gave way goes behind all others until it starts
anew. To choose who leads: rcctl election pin.

Examples:
  rcctl election yield nightly && rcctl election show nightly`,
		Action: onConn(electionName.only, runElectionYield),
	})
}

func runElectionYield(c *cli.Context, std *stdio, s *conn, name string) error {
	var leader string
	_, err := changeElection(c.Context, s, name, "election-yield", func(state *election.State, by string) (ops []consul.Op, line string, err error) {
		ops, leader, err = state.Yield(by)
		return ops, fmt.Sprintf("election %s: leader %s gives way", name, leader), err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(std.out, "%s was asked to give way; rcctl election show %s says who leads\n", clean(leader), name)
	return nil
}

// pinning is what rcctl election pin is asked for.
type pinning struct {
	name, id string // no id: nobody is to be pinned
}

func electionPinCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "pin", Usage: "have one candidate lead before all others",
		UsageText: "rcctl election pin NAME ID\n   rcctl election pin NAME --clear",
		Description: `The pinned candidate leads whenever it lives and answers, whatever the strategy says; while it does not, the strategy
decides. It stays so until it is cleared.

Examples:
  rcctl election pin nightly batch-2
  rcctl election pin nightly --clear`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "clear", Usage: "let the strategy decide again"}},
		Action: onConn(readPin, runElectionPin),
	})
}

func readPin(c *cli.Context) (p pinning, err error) {
	if p.name, err = electionName.check(c, c.Args().First()); err != nil {
		return p, err
	}
	switch {
	case c.Bool("clear") && c.NArg() > 1:
		return p, usagef(c, "unexpected argument %q; allowed: one NAME with --clear", c.Args().Get(1))
	case c.Bool("clear"):
		return p, nil
	case c.NArg() > 2:
		return p, usagef(c, "unexpected argument %q; allowed: NAME ID", c.Args().Get(2))
	}
	p.id, err = noun{"ID", "the id of a candidate, or --clear; rcctl election show lists the candidates"}.check(c, c.Args().Get(1))
	return p, err
}

func runElectionPin(c *cli.Context, std *stdio, s *conn, p pinning) error {
	before := ""
	changed, err := changeElection(c.Context, s, p.name, "election-pin", func(state *election.State, by string) (ops []consul.Op, line string, err error) {
		before = state.Lease.Round.Pin
		if p.id == before {
			return nil, "", nil
		}
		if p.id == "" {
			ops = state.Unpin(by)
		} else {
			ops, err = state.Pin(by, p.id)
		}
		return ops, fmt.Sprintf("election %s: pin: %s -> %s", p.name, orNone(before, before != ""), orNone(p.id, p.id != "")), err
	})
	switch {
	case err != nil:
		return err
	case !changed:
		fmt.Fprintf(std.out, "election %s unchanged (pinned: %s); nothing was written\n", p.name, orNone(p.id, p.id != ""))
	default:
		fmt.Fprintf(std.out, "election %s\n  pin: %s -> %s\n", p.name, clean(orNone(before, before != "")), orNone(p.id, p.id != ""))
	}
	return nil
}

// changeElection opens a round with what an operator wants, and its audit record; again where somebody opened one meanwhile. Nothing is
// written where there are no operations.
func changeElection(ctx context.Context, s *conn, name, what string, compute func(state *election.State, by string) ([]consul.Op, string, error)) (changed bool, err error) {
	err = s.writing(ctx, maxNodeTries, func(ctx context.Context, by string) error {
		state, err := s.election(ctx, name)
		if err != nil {
			return err
		}
		ops, line, err := compute(state, by)
		if errors.Is(err, election.ErrPointless) {
			return refusedf("%v; nothing was written", err)
		}
		if changed = len(ops) > 0; err != nil || !changed {
			return err
		}
		err = s.Operator.CommitAudited(ctx, "election "+name, ops, store.NewAudit(by, what, "", []string{line}))
		if err := s.did(line, "rcctl audit --since 10m", err); err != nil {
			return fmt.Errorf("%s %s: %w", what, name, err)
		}
		return nil
	})
	return changed, err
}
