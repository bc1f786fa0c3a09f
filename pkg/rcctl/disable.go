package rcctl

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func disableCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "disable", Usage: "leave an rc's pods as they are: nothing is placed, nothing is removed",
		UsageText: "rcctl rc disable REF",
		Description: `Until rcctl rc enable its farm places, moves, replaces, upgrades and stops none of its pods, whatever happens to
their nodes. Stops that were asked for before are still carried out and confirmed, a second copy of one replica is still
dismissed, and it can be deleted. The next rcctl apply sets disabled as its document says.

Examples:
  rcctl rc disable web
  rcctl rc enable web`,
		Action: turning(true),
	})
}

func enableCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "enable", Usage: "let farms work on an rc that was disabled",
		UsageText: "rcctl rc enable REF [--wait [--timeout 5m]] [--allow-mass-stop]",
		Description: `The opposite of rcctl rc disable. What was left undone meanwhile is done now.

Examples:
  rcctl rc enable web
  rcctl rc enable web --wait`,
		Flags:  append([]cli.Flag{massStopFlag()}, waitFlags("until the rc has converged")...),
		Action: turning(false),
	})
}

// turning is the action of a command that disables or enables the controller it names.
func turning(disabled bool) cli.ActionFunc {
	return onRC(func(s *conn, found store.Rec[rc.RC]) error {
		done, err := s.changeRC(s.Context, found.Value.ID, func(_ context.Context, r *rc.RC) (change, error) {
			return computeDisable(*r, disabled, s.Bool("allow-mass-stop"))
		})
		if err != nil {
			return err
		}
		printChange(s.stdio, done, map[bool]string{true: "disabled", false: "enabled"}[disabled])
		if !disabled {
			return waitOrSay(s, &done)
		}
		fmt.Fprintf(s.out, "back: rcctl rc enable %s\n", done.rc.Name)
		return nil
	})
}
