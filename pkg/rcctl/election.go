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

func runElectionList(c *cli.Context, std *stdio, s *conn) error {
	names, err := election.List(c.Context, s.consul, s.Keys().Prefix())
	if err != nil {
		return err
	}
	views := []inspect.ElectionView{}
	var corrupt []error
	for _, name := range names {
		state, err := election.Read(c.Context, s.consul, s.Keys().Prefix(), name)
		if errors.Is(err, consul.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		views, corrupt = append(views, viewOf(state)), append(corrupt, state.Lease.Corrupt...)
	}
	return std.print(c, views, corrupt, func(w io.Writer) error {
		if len(views) == 0 {
			_, err := fmt.Fprintln(w, "no elections below "+s.Keys().Prefix())
			return err
		}
		tb := table{header: []string{"NAME", "LEADER", "CANDIDATES", "STRATEGY", "CONDITIONS"}, paint: -1}
		for i := range views {
			v := &views[i]
			tb.rows = append(tb.rows, []string{v.Name, v.Who(), fmt.Sprint(len(v.Candidates)), v.Strategy, v.Says()})
		}
		return tb.write(w, coloured(w))
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
		Action: onElection(runElectionShow),
	})
}

func runElectionShow(c *cli.Context, std *stdio, _ *conn, state *election.State) error {
	v := viewOf(state)
	return std.print(c, v, state.Lease.Corrupt, func(w io.Writer) error {
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

// onElection is the action of a command about the one election it names.
func onElection(run func(*cli.Context, *stdio, *conn, *election.State) error) cli.ActionFunc {
	return onConn(electionName.only, func(c *cli.Context, std *stdio, s *conn, name string) error {
		state, err := s.election(c.Context, name)
		if err != nil {
			return err
		}
		return run(c, std, s, state)
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
