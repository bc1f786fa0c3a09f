package rcctl

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func (t *tool) scaleCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "scale", Usage: "set how many replicas an rc asks for",
		UsageText: "rcctl rc scale REF [--role ROLE] N [--wait [--timeout 5m]] [--allow-mass-stop]",
		Description: `An rc with more than one role needs --role. The next rcctl apply sets the number of its document again.

Examples:
  rcctl rc scale web 5
  rcctl rc scale cache --role leader 1
  rcctl rc scale web 0 --wait`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "role", Usage: "`ROLE` whose replicas are counted (default: the only one)"},
			massStopFlag(),
		}, waitFlags("until the rc has converged")...),
		Action: t.scale,
	})
}

func (t *tool) scale(c *cli.Context) error {
	limit, err := timeout(c)
	if err != nil {
		return err
	}
	if c.NArg() > 2 {
		return usagef(c, "unexpected argument %q; allowed: REF and N", c.Args().Get(2))
	}
	ref, err := checkRef(c, "REF", c.Args().First())
	if err != nil {
		return err
	}
	text := c.Args().Get(1)
	count, err := strconv.Atoi(text)
	if err != nil || count < 0 || count > rc.MaxReplicas {
		return badFlag(c, "N", text, rc.CountAllowed)
	}
	s, err := t.connect(c)
	if err != nil {
		return err
	}
	defer s.close()
	found, err := s.find(c, ref)
	if err != nil {
		return err
	}
	done, err := s.writeTo(c.Context, found.Value.ID, func(cur rc.RC) (change, error) {
		return computeScale(cur, c.String("role"), count, c.Bool("allow-mass-stop"))
	})
	var bad *field.Error
	if errors.As(err, &bad) {
		return &usageError{command: commandName(c), err: bad}
	}
	if err != nil {
		return err
	}
	t.printChange(done, "scaled")
	if c.Bool("wait") {
		return t.waitConverged(c.Context, s, done.rc, limit)
	}
	if !done.none {
		fmt.Fprintf(t.out, "next: rcctl rc status %s\n", done.rc.Name)
	}
	return nil
}
