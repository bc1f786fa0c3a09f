package rcctl

import (
	"fmt"
	"io"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/nodeapi"
)

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
func runSelectedLogs(c *cli.Context, std *stdio, options nodeapi.LogOptions) error {
	if c.Args().Present() {
		return usagef(c, "%s together with --selector; allowed: one of them", c.Args().First())
	}
	if err := checkPodFlags(c); err != nil {
		return err
	}
	var pods []selectedPod
	err := withConn(c, std, func(s *conn) (err error) {
		pods, err = selectPods(c, std, s, options.Follow)
		return err
	})
	if err != nil {
		return err
	}
	lines := logLines{out: bytesTo(c, std.out), err: std.err}
	show := func(p *selectedPod) {
		err := p.err
		if err == nil {
			err = showLog(c.Context, p.client, p.pod.Identity(), options, func(log io.Reader) error { return lines.copy(p.label, log) })
		}
		lines.failed(p.label, err)
	}
	var all sync.WaitGroup
	for i := range pods {
		if c.Context.Err() != nil {
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
func selectPods(c *cli.Context, std *stdio, s *conn, follow bool) ([]selectedPod, error) {
	views, bad, err := s.podViews(c)
	if err != nil {
		return nil, err
	}
	if err := std.warn(bad); err != nil {
		fmt.Fprintln(std.err, "rcctl: these are the logs of the pods that can be read")
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
			clients[node], failed[node] = nodeClient(c.Context, std, s, node)
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
