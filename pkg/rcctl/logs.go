package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
)

func logsCommand() *cli.Command {
	return leaf("logs POD|-l SELECTOR [-f] [--previous] [--launchable NAME] [--tail N] [--raw] [--rc REF] "+
		"[--node NODE]",
		"show what a pod's processes wrote to stdout and stderr",
		`Asks the preparer of the pod's node. POD is a name as rcctl pods shows it, or RC/ROLE.INDEX, or a unique
beginning of one. If a pod has several processes, each line begins with the name of its process.

With -l it shows the logs of all pods that match, as rcctl pods -l lists them, one after the other; with -f all at once,
for the pods that exist now. Each line begins with the name of its pod.

Logs continue over restarts and upgrades of the pod; --previous shows what was written before the last start. The
node keeps them for a while after the pod has stopped, but they can be shown only while the pod has a record.

Examples:
  rcctl logs web-main-0
  rcctl logs web-r1/main.0 -f --tail 20
  rcctl logs web-main-0 --previous
  rcctl logs web-main-0 --launchable proxy --node node-17
  rcctl logs -l app=web -f --tail 5
  rcctl logs -l '' --rc web-r1 --tail 1   of all its pods`,
		onConn(readLogs, runLogs), podFlags(), selectorFlag("pods"),
		toggle("follow/f", "show new lines until the pod stops or a signal comes"),
		toggle("previous", "what was written before the last start"),
		option("launchable",
			"only this process: the `NAME` of a launchable, with -SCRIPT where it is a directory of scripts"),
		rawFlag(), option("tail", "only the last `N` lines of each process"),
	)
}

type wantedLogs struct {
	ref string // of one pod; empty: the flags select pods
	nodeapi.LogOptions
}

func readLogs(c *cli.Context) (want wantedLogs, err error) {
	want.LogOptions = nodeapi.LogOptions{
		Process: c.String("launchable"), Tail: -1, Follow: c.Bool("follow"), Previous: c.Bool("previous"),
	}
	if !c.IsSet("selector") {
		if want.ref, err = onePod(c); err != nil {
			return want, err
		}
	}
	if want.Follow && want.Previous {
		return want, usagef(c, "--follow and --previous: allowed: one of them, because the previous log does not grow")
	}
	if c.IsSet("tail") {
		if want.Tail, err = strconv.Atoi(c.String("tail")); err != nil || want.Tail < 0 {
			return want, badOption(c, "tail", "a number of lines, zero or more")
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

// showLog passes a log to show. With options.Follow the end of ctx is no error.
func showLog(ctx context.Context, client *nodeapi.Client, id pod.Identity, options nodeapi.LogOptions,
	show func(io.Reader) error,
) error {
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
		return awayf("the log was cut off, because the preparer ended or the connection broke: %v", err)
	default:
		return nil
	}
}

// maxFollowed is how many pods one command follows. For each, a preparer keeps a request open.
const maxFollowed = 100

type selectedPod struct {
	label  string // in front of its lines
	pod    inspect.PodView
	client *nodeapi.Client
	err    error // why its node cannot be asked
}

// runSelectedLogs shows the logs one after the other, or, with -f, all at once. After an error about one pod it
// continues with the others.
func runSelectedLogs(s *conn, options nodeapi.LogOptions) error {
	pods, err := selectPods(s, options.Follow)
	if err != nil {
		return err
	}
	lines := logLines{out: bytesTo(s.flags, s.out), err: s.err}
	show := func(p *selectedPod) {
		err := p.err
		if err == nil {
			err = showLog(s.Context, p.client, p.pod.Identity(), options, func(log io.Reader) error {
				return lines.copy(p.label, log)
			})
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

func selectPods(s *conn, follow bool) ([]selectedPod, error) {
	defer s.close()
	views, bad, err := s.podViews()
	if err != nil {
		return nil, err
	}
	if err := s.warn(bad); err != nil {
		s.note("the logs are those of the other pods, whose records can be read")
	}
	switch {
	case len(views) == 0:
		return nil, notFoundf("no pod matches; rcctl pods -o json shows the labels of all pods")
	case follow && len(views) > maxFollowed:
		return nil,
			refusedf("%d pods match, and rcctl follows at most %d at once; choose fewer with --rc, --node or a "+
				"narrower selector", len(views), maxFollowed)
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

type logLines struct {
	mu       sync.Mutex
	out, err io.Writer
	failures int
}

func (l *logLines) copy(label string, log io.Reader) error {
	return nodeapi.EachLine(log, func(line []byte) error { return l.write(label, line) })
}

func (l *logLines) write(label string, line []byte) error {
	text := label + " | " + string(line)
	if line[len(line)-1] != '\n' {
		text += "\n"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := io.WriteString(l.out, text)
	return err
}

func (l *logLines) failed(label string, err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures++
	fmt.Fprintf(l.err, "rcctl: %s: %v\n", label, err)
}

const execName = "exec"

func execCommand() *cli.Command {
	return leaf(execName+" POD [-i] [--raw] [--launchable NAME] [--rc REF] [--node NODE] -- COMMAND [arguments]",
		"run a command beside a pod's processes",
		`The preparer of the pod's node runs the command with the environment, directory, user and limits of one of the
pod's processes, its first unless --launchable names one. There is no terminal. POD is as for rcctl logs.

The exit code is that of the command, or 128 plus the number of the signal that ended it. As in a shell it is 127 if
there is no such program, and 126 if the program could not be executed; any other is rcctl's own. Arguments are in
UTF-8. If rcctl ends first, the preparer ends the command and all processes that it started.

Examples:
  rcctl exec web-main-0 -- env
  rcctl exec web-r1/main.0 -- sh -c 'ls -l $POD_HOME'
  rcctl exec web-main-0 -i -- tar -x -C /tmp < files.tar`,
		onConn(readExec, runExec), podFlags(), toggle("stdin/i", "pass standard input to the command"), rawFlag(),
		option("launchable",
			"like this process: the `NAME` of a launchable, with -SCRIPT where it is a directory of scripts"),
	)
}

func readExec(c *cli.Context) (ref string, err error) {
	if ref, err = checkPod(c, c.Args().First()); err != nil {
		return "", err
	}
	argv := c.Args().Tail()
	if len(argv) == 0 || argv[0] == "" {
		return "", usagef(c, "no command; allowed: POD -- COMMAND [arguments]")
	}
	for _, arg := range argv {
		if !utf8.ValidString(arg) {
			return "", badFlag(c, "COMMAND", arg,
				"a program and arguments in UTF-8; pass other bytes with -i, or with printf in a shell of the pod")
		}
	}
	return ref, nil
}

func runExec(s *conn, ref string) error {
	target, client, err := preparerOf(s, ref)
	if err != nil {
		return err
	}
	defer client.Close()
	var stdin io.Reader
	if s.Bool("stdin") {
		stdin = s.in
	}
	ended, err := client.Exec(s.Context, target.Identity(), s.String("launchable"), s.Args().Tail(), stdin,
		bytesTo(s.flags, s.out), bytesTo(s.flags, s.err))
	switch {
	case err == nil:
		return exitOf(client, ended)
	case s.Context.Err() != nil:
		return &codedError{code: 128 + int(unix.SIGINT), text: "interrupted; the command is ended"}
	default:
		return nodeError(client, err)
	}
}

func exitOf(client *nodeapi.Client, ended nodeapi.Ended) error {
	switch {
	case ended.Error != "":
		code := exitError
		if ended.Code == nodeapi.NotStarted || ended.Code == nodeapi.NoProgram {
			code = ended.Code
		}
		return &codedError{code: code, text: fmt.Sprintf("node %s: %s", client.Node(), ended.Error)}
	case ended.Signal != "":
		return &codedError{
			code: 128 + int(unix.SignalNum(ended.Signal)), text: "the command was ended by " + ended.Signal,
		}
	case ended.Code != 0:
		return &codedError{code: ended.Code}
	default:
		return nil
	}
}
