package rcctl

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/nodeapi"
)

func logsCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "logs", Usage: "show what a pod's processes wrote to stdout and stderr",
		UsageText: "rcctl logs POD [-f] [--previous] [--launchable NAME] [--tail N] [--raw] [--rc REF] [--node NODE]",
		Description: `Asks the preparer of the pod's node. POD is a name as rcctl pods shows it, or RC/ROLE.INDEX, or a unique beginning of
one. Where a pod has several processes, each line says whose it is.

Logs go on over restarts and upgrades of the pod; --previous shows what was written before the last start. They are kept
for a while when the pod has stopped.

Examples:
  rcctl logs web-main-0
  rcctl logs web/main.0 -f --tail 20
  rcctl logs web-main-0 --previous
  rcctl logs web-main-0 --launchable proxy --node node-17`,
		Flags: append(podFlags(),
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with what is added, until the pod stops or a signal comes"},
			&cli.BoolFlag{Name: "previous", Usage: "what was written before the last start"},
			&cli.StringFlag{Name: "launchable", Usage: "only this process: the `NAME` of a launchable, with -SCRIPT where it is a directory of scripts"},
			rawFlag(),
			&cli.StringFlag{Name: "tail", Usage: "only the last `N` lines of each process"},
		),
		Action: offline(runLogs),
	})
}

func runLogs(c *cli.Context, std *stdio) error {
	ref, err := onePod(c)
	if err != nil {
		return err
	}
	options := nodeapi.LogOptions{Process: c.String("launchable"), Tail: -1, Follow: c.Bool("follow"), Previous: c.Bool("previous")}
	if options.Follow && options.Previous {
		return usagef(c, "--follow and --previous: nothing is added to what was before; allowed: one of them")
	}
	if c.IsSet("tail") {
		if options.Tail, err = strconv.Atoi(c.String("tail")); err != nil || options.Tail < 0 {
			return badFlag(c, "--tail", c.String("tail"), "a number of lines, zero or more")
		}
	}
	return withPreparer(c, std, ref, func(target *inspect.PodView, client *nodeapi.Client) error {
		logs, err := client.Logs(c.Context, target.Identity(), options)
		if err != nil {
			return nodeError(client, err)
		}
		defer func() { _ = logs.Close() }()
		_, err = io.Copy(bytesTo(c, std.out), logs)
		switch {
		case options.Follow && c.Context.Err() != nil:
			return nil // this is how following ends
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			return &nodeAway{errors.New("the log was cut off, as the preparer ended or the connection broke: " + err.Error())}
		default:
			return nil
		}
	})
}
