package rcctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func electionListCommand() *cli.Command {
	return leaf("list [-o table|json|yaml]", "list all elections below the prefix",
		`In an election, the processes of a program that needs one leader compete for a lease (pkg/election).
CONDITIONS are problems that need attention: rcctl election show NAME explains them.

Examples:
  rcctl election list
  rcctl --prefix team/ election list
  rcctl election list -o json | jq -r '.[] | select(.held | not) | .name'`,
		onList(runElectionList), outputFlag(),
	)
}

func runElectionList(s *conn) error {
	names, err := election.List(s.Context, s.consul, s.Keys().Prefix())
	if err != nil {
		return err
	}
	views := []inspect.ElectionView{}
	var corrupt []error
	for _, name := range names {
		state, err := election.Read(s.Context, s.consul, s.Keys().Prefix(), name)
		if errors.Is(err, consul.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		views, corrupt = append(views, viewOf(state)), append(corrupt, state.Lease.Corrupt...)
	}
	tb := columns("NAME", "LEADER", "CANDIDATES", "STRATEGY", "CONDITIONS")
	return printTable(s, views, corrupt, "no elections below "+s.Keys().Prefix(), tb,
		func(v *inspect.ElectionView) []string {
			return []string{v.Name, v.Who(), fmt.Sprint(len(v.Candidates)), v.Strategy, v.Says()}
		})
}

func viewOf(s *election.State) inspect.ElectionView {
	return inspect.JoinElection(s.Name, s.Lease, s.Candidates, s.Verdict)
}

func electionShowCommand() *cli.Command {
	return leaf("show NAME [-o table|json|yaml]", "show who leads, the candidates, and what is wrong",
		`A silent candidate lives but did not answer the last round: its process may hang. Conditions:
  StrategyConflict  candidates of the highest version name different strategies. The leader keeps the lease, and no
                    other is elected. Give all candidates of that version the same strategy, or pin one.
  UnknownStrategy   the strategy of the highest version belongs to another program, which assigns the lease.
  AllSilent         no candidate has answered: look at the processes.
  PinAbsent         the pinned candidate is gone or does not answer; the strategy decides meanwhile.
  Excluded          a candidate cannot be chosen; the message names the field, the value and what is allowed.

Examples:
  rcctl election show nightly
  rcctl election show nightly -o json | jq -r .leader`,
		onConn(electionName.only, runElectionShow), outputFlag(),
	)
}

func runElectionShow(s *conn, name string) error {
	state, err := s.election(s.Context, name)
	if err != nil {
		return err
	}
	v := viewOf(state)
	return s.print(v, state.Lease.Corrupt, func(w io.Writer) error {
		for _, line := range v.Story() {
			fmt.Fprintln(w, clean(line))
		}
		if len(v.Candidates) == 0 {
			_, err := fmt.Fprintln(w, "no candidates")
			return err
		}
		fmt.Fprintln(w)
		tb := columns("CANDIDATE", "VERSION", "EMULATES", "STRATEGY", "NOTES")
		for i := range v.Candidates {
			cand := &v.Candidates[i]
			tb.add(cand.ID, cand.BinaryVersion, cand.EmulationVersion, cand.Strategy, v.Notes(cand))
		}
		return tb.write(w, coloured(w))
	})
}

func (s *conn) election(ctx context.Context, name string) (*election.State, error) {
	state, err := election.Read(ctx, s.consul, s.Keys().Prefix(), name)
	if errors.Is(err, consul.ErrNotFound) {
		return nil, notFoundf("there is no election %s below %s; rcctl election list shows all",
			name, s.Keys().Prefix())
	}
	return state, err
}

func electionYieldCommand() *cli.Command {
	return leaf("yield NAME", "have the leader give way to another candidate",
		`The leader ends its work, and another candidate leads. Until it restarts, the former leader comes after
all other candidates. To choose the leader: rcctl election pin.

Examples:
  rcctl election yield nightly && rcctl election show nightly`,
		onConn(electionName.only, runElectionYield),
	)
}

func runElectionYield(s *conn, name string) error {
	var leader string
	_, err := changeElection(s.Context, s, name, "election-yield",
		func(state *election.State, by string) (ops []consul.Op, line string, err error) {
			ops, leader, err = state.Yield(by)
			return ops, fmt.Sprintf("election %s: leader %s gives way", name, leader), err
		})
	if err != nil {
		return err
	}
	s.printLine("%s was asked to give way; rcctl election show %s says who leads", clean(leader), name)
	return nil
}

type pinning struct {
	name, id string // no id: remove the pin
}

func electionPinCommand() *cli.Command {
	return leaf("pin NAME ID\n   rcctl election pin NAME --clear", "have one candidate lead before all others",
		`The pinned candidate leads whenever it lives and answers, regardless of the strategy. Otherwise the strategy
decides. The pin remains until you clear it.

Examples:
  rcctl election pin nightly batch-2
  rcctl election pin nightly --clear`,
		onConn(readPin, runElectionPin), toggle("clear", "let the strategy decide again"),
	)
}

func readPin(c *cli.Context) (p pinning, err error) {
	if p.name, err = electionName.check(c, c.Args().First()); err != nil {
		return p, err
	}
	switch {
	case c.Bool("clear") && c.NArg() > 1:
		return p, unexpected(c, 1, "one NAME with --clear")
	case c.Bool("clear"):
		return p, nil
	case c.NArg() > 2:
		return p, unexpected(c, 2, "NAME ID")
	}
	p.id, err = noun{
		"ID",
		"the id of a candidate, or --clear; rcctl election show lists the candidates",
	}.check(c, c.Args().Get(1))
	return p, err
}

func runElectionPin(s *conn, p pinning) error {
	before := ""
	changed, err := changeElection(s.Context, s, p.name, "election-pin",
		func(state *election.State, by string) (ops []consul.Op, line string, err error) {
			before = state.Lease.Round.Pin
			if p.id == before {
				return nil, "", nil
			}
			if p.id == "" {
				ops = state.Unpin(by)
			} else {
				ops, err = state.Pin(by, p.id)
			}
			return ops, fmt.Sprintf("election %s: pin: %s -> %s",
				p.name, cmp.Or(before, "none"), cmp.Or(p.id, "none")), err
		})
	switch {
	case err != nil:
		return err
	case !changed:
		s.printLine("election %s unchanged (pinned: %s); nothing was written", p.name, cmp.Or(p.id, "none"))
	default:
		s.printLine("election %s\n  pin: %s -> %s", p.name, clean(cmp.Or(before, "none")), cmp.Or(p.id, "none"))
	}
	return nil
}

// changeElection opens a round with the operator's change. If somebody opened one meanwhile, it tries again. It writes
// nothing if compute returns no operations.
func changeElection(ctx context.Context, s *conn, name, what string,
	compute func(state *election.State, by string) ([]consul.Op, string, error),
) (changed bool, err error) {
	err = s.writing(ctx, maxNodeTries, func(ctx context.Context, by string) error {
		state, err := s.election(ctx, name)
		if err != nil {
			return err
		}
		ops, line, err := compute(state, by)
		if errors.Is(err, election.ErrPointless) {
			return unwrittenf("%v", err)
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
