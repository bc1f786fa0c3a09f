package rcctl

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/store"
)

// FarmView is one living farm.
type FarmView struct {
	ID               string `json:"id"`
	Version          string `json:"version"`
	EmulationVersion string `json:"emulation_version"`
	Incarnation      string `json:"incarnation"`
	Address          string `json:"address,omitempty"`     // of its debug server
	RCSelector       string `json:"rc_selector,omitempty"` // of the controllers that it works on; empty: all
	Owned            int    `json:"owned"`                 // controllers
}

func (t *tool) farmsCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "farms", Usage: "list the living farms and how many rcs each owns",
		UsageText: "rcctl farms [-o table|json|yaml]",
		Description: `A farm is in the list for as long as its session with Consul lives. ADDRESS is that of its debug server, on its own
machine. SELECTOR says which rcs it works on; without one it works on all.

Examples:
  rcctl farms
  rcctl farms -o json | jq 'map(.owned) | add'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: t.farms,
	})
}

func (t *tool) farms(c *cli.Context) error {
	out, s, err := connectToList(c)
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
	views, free := joinFarms(values(members), owners, ids)
	if len(views) == 0 {
		if err := s.empty(c.Context, t.err); err != nil {
			return err
		}
	}
	if err := t.print(out, views, func(w io.Writer) error { return writeFarms(w, views) }); err != nil {
		return err
	}
	if free > 0 {
		fmt.Fprintf(t.err, "rcctl: %d of %d rcs have no owner; rcctl rc list shows which are Unclaimed\n", free, len(ids))
	}
	return t.warn(corrupt)
}

// joinFarms counts what each farm owns, and the controllers that nobody does.
func joinFarms(members []store.Member, owners map[string]string, rcIDs []string) (views []FarmView, free int) {
	owned := map[string]int{}
	for _, id := range rcIDs {
		farm, has := owners[id]
		if !has {
			free++
			continue
		}
		owned[farm]++
	}
	views = make([]FarmView, 0, len(members))
	for _, m := range members {
		views = append(views, FarmView{
			ID: m.ID, Version: m.Version, EmulationVersion: m.EmulationVersion, Incarnation: m.Incarnation,
			Address: m.Address, RCSelector: m.RCSelector, Owned: owned[m.ID],
		})
	}
	slices.SortFunc(views, func(a, b FarmView) int { return cmp.Compare(a.ID, b.ID) })
	return views, free
}

func writeFarms(w io.Writer, views []FarmView) error {
	if len(views) == 0 {
		_, err := fmt.Fprintln(w, "no farms; start one: farm --id farm-1")
		return err
	}
	tb := table{header: []string{"ID", "OWNED", "VERSION", "EMULATES", "ADDRESS", "SELECTOR"}, paint: -1}
	for _, v := range views {
		tb.rows = append(tb.rows, []string{v.ID, fmt.Sprint(v.Owned), v.Version, v.EmulationVersion, v.Address, v.RCSelector})
	}
	return tb.write(w, false)
}

// farmCommand groups the commands about the farms as a whole.
func (t *tool) farmCommand() *cli.Command {
	return &cli.Command{
		Name: "farm", Usage: "let the farms go on after the mass-stop breaker tripped",
		UsageText:       "rcctl farm COMMAND [flags]",
		HideHelpCommand: true,
		Action:          t.group,
		OnUsageError:    onUsageError,
		Subcommands:     []*cli.Command{t.resumeCommand()},
	}
}

func (t *tool) resumeCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "resume", Usage: "reset the mass-stop breaker",
		UsageText: "rcctl farm resume",
		Description: `A farm that has stopped more than half of its pods within a minute trips the breaker: from then on no farm stops
anything. Find out why first (rcctl audit --since 10m): what was about to be stopped is stopped when it is reset.
It also mends a breaker record that cannot be read.

Examples:
  rcctl audit --since 10m
  rcctl farm resume`,
		Action: t.resume,
	})
}

func (t *tool) resume(c *cli.Context) error {
	if c.Args().Present() {
		return usagef(c, "unexpected argument %q; allowed: none", c.Args().First())
	}
	s, err := connect(c)
	if err != nil {
		return err
	}
	defer s.close()
	author, err := s.who(c.Context)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		rec, err := s.ReadBreaker(c.Context)
		var corrupt *store.CorruptError
		line := ""
		switch {
		case errors.Is(err, store.ErrNotFound):
			return refusedf("there is no breaker below %s; a farm makes one when it runs; nothing was written", s.Keys().Prefix())
		case errors.As(err, &corrupt):
			line = "breaker: unreadable -> reset"
		case err != nil:
			return fmt.Errorf("read breaker: %w", err)
		case !rec.Value.Tripped:
			fmt.Fprintln(t.out, "the breaker is not tripped; nothing was written")
			return nil
		default:
			line = fmt.Sprintf("breaker: tripped by %s since %s (%s) -> reset", rec.Value.By, rec.Value.Since.UTC().Format(time.RFC3339), rec.Value.Reason)
		}
		err = s.ResetBreaker(c.Context, rec.Index, store.NewAudit(author, "resume", "", []string{line}))
		if errors.Is(err, store.ErrConflict) && try < maxTries {
			continue
		}
		if err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		fmt.Fprintf(t.out, "the farms may stop pods again\n  %s\n", clean(line))
		return nil
	}
}
