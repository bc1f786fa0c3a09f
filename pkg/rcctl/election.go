package rcctl

import (
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
	return leaf(&cli.Command{
		Name: "list", Aliases: []string{"ls"}, Usage: "list all elections below the prefix",
		UsageText: "rcctl election list [-o table|json|yaml]",
		Description: `An election is what the processes of a program compete for that needs one leader (pkg/election). CONDITIONS are what
somebody should look at: rcctl election show NAME says what they mean.

Examples:
  rcctl election list
  rcctl --prefix team/ election list
  rcctl election list -o json | jq -r '.[] | select(.held | not) | .name'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onList(runElectionList),
	})
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
	tb := table{header: []string{"NAME", "LEADER", "CANDIDATES", "STRATEGY", "CONDITIONS"}, paint: -1}
	return printTable(s, views, corrupt, "no elections below "+s.Keys().Prefix(), tb, func(v *inspect.ElectionView) []string {
		return []string{v.Name, v.Who(), fmt.Sprint(len(v.Candidates)), v.Strategy, v.Says()}
	})
}

func viewOf(s *election.State) inspect.ElectionView {
	return inspect.JoinElection(s.Name, s.Lease, s.Candidates, s.Verdict)
}

func electionShowCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "show", Usage: "show who leads, the candidates, and what is wrong",
		UsageText: "rcctl election show NAME [-o table|json|yaml]",
		Description: `A candidate is silent that lives and has not answered the last round: its process may hang. Conditions:
  StrategyConflict  candidates of the highest version name different strategies: nobody is elected, who leads stays.
                    Have all of that version name the same, or pin one.
  UnknownStrategy   the strategy of the highest version is another program's, which assigns the lease.
  AllSilent         nobody has answered: look at the processes.
  PinAbsent         who is pinned is not there, or does not answer; the strategy decides meanwhile.
  Excluded          a candidate cannot be chosen; the message names the field, the value and what is allowed.

Examples:
  rcctl election show nightly
  rcctl election show nightly -o json | jq -r .leader`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onConn(electionName.only, runElectionShow),
	})
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
		tb := table{header: []string{"CANDIDATE", "VERSION", "EMULATES", "STRATEGY", "NOTES"}, paint: -1}
		for i := range v.Candidates {
			cand := &v.Candidates[i]
			tb.rows = append(tb.rows, []string{cand.ID, cand.BinaryVersion, cand.EmulationVersion, cand.Strategy, v.Notes(cand)})
		}
		return tb.write(w, coloured(w))
	})
}

// election reads one election.
func (s *conn) election(ctx context.Context, name string) (*election.State, error) {
	state, err := election.Read(ctx, s.consul, s.Keys().Prefix(), name)
	if errors.Is(err, consul.ErrNotFound) {
		return nil, notFoundf("there is no election %s below %s; rcctl election list shows all", name, s.Keys().Prefix())
	}
	return state, err
}

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

func runElectionYield(s *conn, name string) error {
	var leader string
	_, err := changeElection(s.Context, s, name, "election-yield", func(state *election.State, by string) (ops []consul.Op, line string, err error) {
		ops, leader, err = state.Yield(by)
		return ops, fmt.Sprintf("election %s: leader %s gives way", name, leader), err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%s was asked to give way; rcctl election show %s says who leads\n", clean(leader), name)
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

func runElectionPin(s *conn, p pinning) error {
	before := ""
	changed, err := changeElection(s.Context, s, p.name, "election-pin", func(state *election.State, by string) (ops []consul.Op, line string, err error) {
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
		fmt.Fprintf(s.out, "election %s unchanged (pinned: %s); nothing was written\n", p.name, orNone(p.id, p.id != ""))
	default:
		fmt.Fprintf(s.out, "election %s\n  pin: %s -> %s\n", p.name, clean(orNone(before, before != "")), orNone(p.id, p.id != ""))
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
