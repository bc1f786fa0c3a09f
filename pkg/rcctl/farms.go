package rcctl

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func farmsCommand() *cli.Command {
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
		Action: onList(runFarms),
	})
}

func runFarms(c *cli.Context, std *stdio, s *conn) error {
	members, corrupt, err := s.Farms.List(c.Context, store.Default)
	if err != nil {
		return err
	}
	owners, err := s.LockOwners(c.Context)
	if err != nil {
		return err
	}
	ids, err := s.RCs.IDs(c.Context)
	if err != nil {
		return err
	}
	var names map[string]string
	if c.String("output") != formats[0] { // else the keys of the records are enough
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
	tb := table{header: []string{"ID", "HEARD", "OWNED", "VERSION", "EMULATES", "ADDRESS", "SELECTOR"}, paint: -1}
	wide := c.String("output") == wideFormat
	if wide {
		tb.header = append(tb.header, "RCS")
	}
	err = printList(c, std, s, views, corrupt, "no farms; start one: farm --id farm-1", tb, func(v *inspect.FarmView) []string { return farmRow(v, now, wide) })
	for i := range views {
		if views[i].Silent {
			noteSilent(std, "farm "+views[i].ID, *views[i].Heard, now)
		}
	}
	if free > 0 {
		fmt.Fprintf(std.err, "rcctl: %d of %d rcs have no owner; rcctl rc list shows which are Unclaimed\n", free, len(ids))
	}
	return err
}

func farmRow(v *inspect.FarmView, now time.Time, wide bool) []string {
	said := heardText(v.Heard, now)
	if v.Silent {
		said = "silent " + said
	}
	selects := v.RCSelector
	if v.RCID != "" {
		selects = "rc " + v.RCID
	}
	row := []string{v.ID, said, fmt.Sprint(v.Owned), v.Version, v.EmulationVersion, v.Address, selects}
	if !wide {
		return row
	}
	names := field.Each(v.OwnedRCs, func(r inspect.OwnedRC) string { return cmp.Or(r.Name, r.ID) })
	return append(row, strings.Join(names, ","))
}
