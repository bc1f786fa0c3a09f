package rcctl

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func deleteCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "delete", Usage: "mark an rc for deletion; its owner stops the pods and removes the records",
		UsageText: "rcctl rc delete REF [--force] [--wait [--timeout 5m]] [--allow-mass-stop]",
		Description: `An rc that still asks for replicas is refused (exit code 4) unless --force is given. The farm that owns the
rc stops its pods, waits until their nodes have confirmed that, then removes every record of the rc. A pod on
a lost node holds the deletion up, because nobody can confirm that it stopped. Deleting again what is being deleted
changes nothing and succeeds; with --allow-mass-stop it lets the breaker pass what it held up.

A revision of a service is refused (exit code 4), with --force too: rcctl service delete SERVICE. An old revision that
asks for no replicas may be deleted.

Examples:
  rcctl rc scale web 0 && rcctl rc delete web --wait
  rcctl rc delete web --force`,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "force", Usage: "delete even though replicas are asked for"},
			massStopFlag(),
		}, waitFlags("until the rc is gone")...),
		Action: onRC(runDelete),
	})
}

func runDelete(s *conn, found store.Rec[rc.RC]) error {
	now := time.Now()
	done, err := s.changeRC(s.Context, found.Value.ID, func(ctx context.Context, r *rc.RC) (change, error) {
		svc, err := s.serviceOf(ctx, r)
		if err != nil {
			return change{}, err
		}
		return computeDelete(current{rc: r, service: svc}, s.Bool("force"), s.Bool("allow-mass-stop"), now)
	})
	if err != nil {
		return err
	}
	switch {
	case done.none:
		fmt.Fprintf(s.out, "rc %s is already being deleted, since %s; nothing was written\n", done.rc.Name, done.rc.DeletedAt.Format(time.RFC3339))
	case found.Value.DeletedAt != nil:
		fmt.Fprintf(s.out, "rc %s is already being deleted, since %s; its pods may now stop at once (generation %d)\n",
			done.rc.Name, done.rc.DeletedAt.Format(time.RFC3339), done.rc.Generation)
	default:
		fmt.Fprintf(s.out, "rc %s marked for deletion (id %s, generation %d)\n", done.rc.Name, done.rc.ID, done.rc.Generation)
		fmt.Fprintf(s.out, "next: its farm stops the pods, waits for their nodes to confirm, then removes the records\n")
	}
	if s.Bool("wait") {
		return waitGone(s.Context, s, done.rc, limitOf(s.flags))
	}
	fmt.Fprintf(s.out, "watch: rcctl pods --rc %s\n", done.rc.ID)
	return nil
}
