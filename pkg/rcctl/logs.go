package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
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
		Action: onConn(readLogs, runLogs),
	})
}

// wantedLogs is which logs a command line asks for, and what of them.
type wantedLogs struct {
	ref string // of one pod; else the flags select pods
	nodeapi.LogOptions
}

func readLogs(c *cli.Context) (want wantedLogs, err error) {
	want.LogOptions = nodeapi.LogOptions{Process: c.String("launchable"), Tail: -1, Follow: c.Bool("follow"), Previous: c.Bool("previous")}
	if !c.IsSet("selector") {
		if want.ref, err = onePod(c); err != nil {
			return want, err
		}
	}
	if want.Follow && want.Previous {
		return want, usagef(c, "--follow and --previous: nothing is added to what was before; allowed: one of them")
	}
	if c.IsSet("tail") {
		if want.Tail, err = strconv.Atoi(c.String("tail")); err != nil || want.Tail < 0 {
			return want, badFlag(c, "--tail", c.String("tail"), "a number of lines, zero or more")
		}
	}
	switch {
	case !c.IsSet("selector"):
		return want, nil
	case c.Args().Present():
		return want, usagef(c, "%s together with --selector; allowed: one of them", c.Args().First())
	default:
		return want, checkPodFlags(c)
	}
}

func runLogs(s *conn, want wantedLogs) error {
	if want.ref == "" {
		return runSelectedLogs(s, want.LogOptions)
	}
	target, client, err := preparerOf(s, want.ref)
	if err != nil {
		return err
	}
	defer client.Close()
	return showLog(s.Context, client, target.Identity(), want.LogOptions, func(log io.Reader) error {
		_, err := io.Copy(bytesTo(s.flags, s.out), log)
		return err
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

// maxFollowed bounds how many pods one command follows: each is a request that its preparer keeps open.
const maxFollowed = 100

// selectedPod is one of several pods whose logs are shown.
type selectedPod struct {
	label  string // in front of its lines
	pod    inspect.PodView
	client *nodeapi.Client
	err    error // why its node cannot be asked
}

// runSelectedLogs shows the logs of the pods that -l selects: one after the other or, followed, all at once. What cannot be shown of one
// is said on standard error, and does not keep the others back.
func runSelectedLogs(s *conn, options nodeapi.LogOptions) error {
	pods, err := selectPods(s, options.Follow)
	if err != nil {
		return err
	}
	lines := logLines{out: bytesTo(s.flags, s.out), err: s.err}
	show := func(p *selectedPod) {
		err := p.err
		if err == nil {
			err = showLog(s.Context, p.client, p.pod.Identity(), options, func(log io.Reader) error { return lines.copy(p.label, log) })
		}
		lines.failed(p.label, err)
	}
	var all sync.WaitGroup
	for i := range pods {
		if s.Context.Err() != nil {
			break
		}
		if options.Follow {
			all.Go(func() { show(&pods[i]) })
		} else {
			show(&pods[i])
		}
	}
	all.Wait()
	for i := range pods {
		if pods[i].client != nil {
			pods[i].client.Close()
		}
	}
	if lines.failures > 0 {
		return fmt.Errorf("the logs of %d of %d pods are not shown, or cut off", lines.failures, len(pods))
	}
	return nil
}

// selectPods finds the pods that the command line selects, and how to ask their nodes.
func selectPods(s *conn, follow bool) ([]selectedPod, error) {
	defer s.close()
	views, bad, err := s.podViews()
	if err != nil {
		return nil, err
	}
	if err := s.warn(bad); err != nil {
		fmt.Fprintln(s.err, "rcctl: these are the logs of the pods that can be read")
	}
	switch {
	case len(views) == 0:
		return nil, notFoundf("no pod has such labels there; rcctl pods -o json shows the labels of all")
	case follow && len(views) > maxFollowed:
		return nil, refusedf("%d pods have such labels, and at most %d are followed at once; --rc, --node or a narrower selector chooses fewer", len(views), maxFollowed)
	}
	clients, failed := map[string]*nodeapi.Client{}, map[string]error{}
	pods := make([]selectedPod, len(views))
	for i, label := range inspect.LogLabels(views) {
		node := views[i].Node
		if clients[node] == nil && failed[node] == nil {
			clients[node], failed[node] = nodeClient(s.Context, s, node)
		}
		pods[i] = selectedPod{label: label, pod: views[i], client: clients[node], err: failed[node]}
	}
	return pods, nil
}

// logLines writes lines of several logs, each as a whole.
type logLines struct {
	mu       sync.Mutex
	out, err io.Writer
	failures int
}

// copy writes the lines of a log, with whose they are.
func (w *logLines) copy(label string, log io.Reader) error {
	return nodeapi.EachLine(log, func(line []byte) error { return w.write(label, line) })
}

func (w *logLines) write(label string, line []byte) error {
	text := label + " | " + string(line)
	if line[len(line)-1] != '\n' {
		text += "\n"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := io.WriteString(w.out, text)
	return err
}

// failed says what is not shown of a log.
func (w *logLines) failed(label string, err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures++
	fmt.Fprintf(w.err, "rcctl: %s: %v\n", label, err)
}
