package rcctl

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

func (t *tool) disableCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "disable", Usage: "leave an rc's pods as they are: nothing is placed, nothing is removed",
		UsageText: "rcctl rc disable REF",
		Description: `Until rcctl rc enable its farm places, moves, replaces, upgrades and stops none of its pods, whatever happens to
their nodes. Stops that were asked for before are still carried out and confirmed, a second copy of one replica is still
dismissed, and it can be deleted. The next rcctl apply sets disabled as its document says.

Examples:
  rcctl rc disable web
  rcctl rc enable web`,
		Action: t.disable,
	})
}

func (t *tool) enableCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "enable", Usage: "let farms work on an rc that was disabled",
		UsageText: "rcctl rc enable REF [--wait [--timeout 5m]] [--allow-mass-stop]",
		Description: `The opposite of rcctl rc disable. What was left undone meanwhile is done now.

Examples:
  rcctl rc enable web
  rcctl rc enable web --wait`,
		Flags:  append([]cli.Flag{massStopFlag()}, waitFlags("until the rc has converged")...),
		Action: t.enable,
	})
}

func (t *tool) disable(c *cli.Context) error {
	return t.turn(c, "disabled", true, func(_ *conn, done change) error {
		fmt.Fprintf(t.out, "back: rcctl rc enable %s\n", done.rc.Name)
		return nil
	})
}

func (t *tool) enable(c *cli.Context) error {
	limit, err := timeout(c)
	if err != nil {
		return err
	}
	return t.turn(c, "enabled", false, func(s *conn, done change) error {
		if c.Bool("wait") {
			return t.waitConverged(c.Context, s, done.rc, limit)
		}
		if !done.none {
			fmt.Fprintf(t.out, "next: rcctl rc status %s\n", done.rc.Name)
		}
		return nil
	})
}

// turn disables or enables one controller, says that it is done, and goes on with then.
func (t *tool) turn(c *cli.Context, done string, disabled bool, then func(*conn, change) error) error {
	s, found, err := t.connectToChange(c)
	if err != nil {
		return err
	}
	defer s.close()
	written, err := s.writeTo(c.Context, found.Value.ID, func(cur rc.RC) (change, error) {
		return computeDisable(cur, disabled, c.Bool("allow-mass-stop"))
	})
	if err != nil {
		return err
	}
	t.printChange(written, done)
	return then(s, written)
}
