package rcctl

import (
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

func logsCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "logs", Usage: "show what a pod's processes wrote to stdout and stderr",
		UsageText: "rcctl logs POD|-l SELECTOR [-f] [--previous] [--launchable NAME] [--tail N] [--raw] [--rc REF] [--node NODE]",
		Description: `Asks the preparer of the pod's node. POD is a name as rcctl pods shows it, or RC/ROLE.INDEX, or a unique beginning of
one. Where a pod has several processes, each line says whose it is.

With -l it shows the logs of all pods that have such labels, those that rcctl pods -l lists, one after the other; with -f all at once, of
the pods that there are now. Each line says of which pod it is.

Logs go on over restarts and upgrades of the pod; --previous shows what was written before the last start. They are kept
for a while when the pod has stopped.

Examples:
  rcctl logs web-main-0
  rcctl logs web/main.0 -f --tail 20
  rcctl logs web-main-0 --previous
  rcctl logs web-main-0 --launchable proxy --node node-17
  rcctl logs -l app=web -f --tail 5
  rcctl logs -l '' --rc web --tail 1      of all its pods`,
		Flags: append(podFlags(),
			selectorFlag("pods"),
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
	options := nodeapi.LogOptions{Process: c.String("launchable"), Tail: -1, Follow: c.Bool("follow"), Previous: c.Bool("previous")}
	var ref string
	var err error
	if !c.IsSet("selector") {
		if ref, err = onePod(c); err != nil {
			return err
		}
	}
	if options.Follow && options.Previous {
		return usagef(c, "--follow and --previous: nothing is added to what was before; allowed: one of them")
	}
	if c.IsSet("tail") {
		if options.Tail, err = strconv.Atoi(c.String("tail")); err != nil || options.Tail < 0 {
			return badFlag(c, "--tail", c.String("tail"), "a number of lines, zero or more")
		}
	}
	if c.IsSet("selector") {
		return runSelectedLogs(c, std, options)
	}
	return withPreparer(c, std, ref, func(target *inspect.PodView, client *nodeapi.Client) error {
		return showLog(c.Context, client, target.Identity(), options, func(log io.Reader) error {
			_, err := io.Copy(bytesTo(c, std.out), log)
			return err
		})
	})
}

// showLog asks for the log of a pod and hands it to show. The end of ctx is how following ends.
func showLog(ctx context.Context, client *nodeapi.Client, id pod.Identity, options nodeapi.LogOptions, show func(io.Reader) error) error {
	logs, err := client.Logs(ctx, id, options)
	switch {
	case err != nil && options.Follow && ctx.Err() != nil:
		return nil
	case err != nil:
		return nodeError(client, err)
	}
	defer func() { _ = logs.Close() }()
	err = show(logs)
	switch {
	case options.Follow && ctx.Err() != nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case err != nil:
		return awayf("the log was cut off, as the preparer ended or the connection broke: %v", err)
	default:
		return nil
	}
}
