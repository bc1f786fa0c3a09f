package rcctl

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func describeCommand() *cli.Command {
	return leaf("describe POD [--rc REF] [--node NODE] [-o table|json|yaml]", "show all that is known of one pod",
		`Shows the farm's placement, the node's intent, the node's report, and the latest audit entries about the pod.
POD is a name as rcctl pods shows it, or RC/ROLE.INDEX, or a unique beginning of one.

Examples:
  rcctl pod describe web-main-0
  rcctl pod describe web/main.0 -o json | jq .reality`,
		onConn(onePod, runDescribe), podFlags(), outputFlag(),
	)
}

func runDescribe(s *conn, ref string) error {
	view, err := s.findPod(ref)
	if err != nil {
		return err
	}
	records, corrupt, err := podRecords(s.Context, s, &view)
	if err != nil {
		return err
	}
	d := inspect.Describe(&view, records)
	return s.print(d, corrupt, func(w io.Writer) error { return writeDescription(w, &d, time.Now()) })
}

// podRecords also returns errors about unreadable records.
func podRecords(ctx context.Context, s *conn, view *inspect.PodView) (in *inspect.PodRecords,
	corrupt []error, err error,
) {
	id, in := view.Identity(), &inspect.PodRecords{}
	rec, err := s.Nodes.Get(ctx, store.Consistent, view.Node)
	switch {
	case isCorrupt(err):
		corrupt = append(corrupt, err)
	case err != nil && !isMissing(err):
		return nil, nil, fmt.Errorf("read node %s: %w", view.Node, err)
	default:
		in.Node = &rec
	}
	var bad []error
	if in.Placements, bad, err = s.Pods.List(ctx, store.Default, id.RCID); err != nil {
		return nil, nil, fmt.Errorf("read placements: %w", err)
	}
	corrupt = append(corrupt, bad...)
	if in.Intents, bad, err = s.Intents.List(ctx, store.Default, view.Node); err != nil {
		return nil, nil, fmt.Errorf("read intents of node %s: %w", view.Node, err)
	}
	corrupt = append(corrupt, bad...)
	at := store.At{Node: view.Node, Identity: id}
	realities, bad, err := s.RealitiesAt(ctx, []store.At{at}, store.Default)
	if err != nil {
		return nil, nil, fmt.Errorf("read reality: %w", err)
	}
	corrupt = append(corrupt, bad...)
	if r, ok := realities[at]; ok {
		in.Reality = &r
	}
	if in.Acts, bad, err = s.ListAudit(ctx, store.AuditFilter{RCID: id.RCID}); err != nil {
		return nil, nil, fmt.Errorf("read audit: %w", err)
	}
	return in, append(corrupt, bad...), nil
}

func writeDescription(w io.Writer, d *inspect.PodDescription, now time.Time) error {
	out := &sheet{w: w}
	out.line("Pod", "%s", d.Name)
	local := d.Kind == inspect.Local
	if local {
		out.line("Service", "%s", d.PodID)
	} else {
		out.line("RC", "%s", strings.TrimSpace(d.RCName+" ("+d.RCID+")"))
	}
	node := map[bool]string{true: "its preparer lives", false: "no living preparer"}[d.NodeAlive]
	if d.State == inspect.Lost {
		node = "its machine is gone"
	}
	out.line("Node", "%s (%s)", d.Node, node)
	out.line("Kind", "%s",
		d.Kind+map[bool]string{true: ": a service that the node runs without a farm"}[local])
	out.line("State", "%s%s", d.State, lastsText(now, d.Since))
	out.line("Available", "%s", yesNo(d.Available))
	if d.Message != "" {
		out.line("Message", "%s", d.Message)
	}
	out.line("Restarts", "%d", d.Restarts)
	if d.LastExit != nil {
		out.line("Last exit", "%s, %s ago", exitText(d.LastExit), inspect.Age(now, d.LastExit.At))
	}
	if ports := portsText(d.Ports); ports != "" {
		out.line("Ports", "%s", ports)
	}
	if len(d.Labels) > 0 {
		out.line("Labels", "%s", inspect.LabelText(d.Labels))
	}
	if d.Kind == inspect.Placed {
		out.line("Placement", "%s, manifest %s, revision %d%s",
			d.RunState, inspect.Short(d.Digest), d.Revision, lastsText(now, d.ChangedAt))
	}
	for _, g := range d.Ghosts {
		out.line("Former node", "%s%s", g.Node, lastsText(now, &g.Since))
	}
	switch in := d.Intent; {
	case in != nil:
		out.line("Intent", "%s, manifest %s, revision %d", in.State, inspect.Short(in.Digest), in.Revision)
	case local:
		out.line("Assignment",
			"by requests to the node, which keeps them in its own files; change it: rcctl scale-request %s", d.Node)
	default:
		out.line("Intent", "none: the farm asks nothing of the node about it")
	}
	report := func(r *pod.Reality) string {
		return fmt.Sprintf("%s, manifest %s, revision %d", r.State, inspect.Short(r.Digest), r.Revision)
	}
	switch {
	case d.Reality != nil:
		out.line("Reality", "%s", report(d.Reality))
	case d.LastReality != nil:
		out.line("Reality", "unknown, because no preparer reports for the node; its last report: %s",
			report(d.LastReality))
	default:
		out.line("Reality", "none: the node has reported nothing")
	}
	if len(d.Events) == 0 {
		out.line("Events", "none on record")
	}
	for i, e := range d.Events {
		out.line(map[bool]string{true: "Events"}[i == 0], "%s  %s  by %s",
			e.At.Format(time.RFC3339), forTerminal(e.What), e.Who)
	}
	return out.err
}

type sheet struct {
	w   io.Writer
	err error
}

func (s *sheet) line(name, format string, args ...any) {
	if s.err == nil {
		_, s.err = fmt.Fprintf(s.w, "%-13s%s\n", name, clean(fmt.Sprintf(format, args...)))
	}
}

func lastsText(now time.Time, at *time.Time) string {
	if at == nil || at.IsZero() {
		return ""
	}
	return fmt.Sprintf(", for %s (since %s)", inspect.Age(now, *at), inspect.At(*at))
}

func exitText(e *pod.Exit) string {
	switch {
	case e.OutOfMemory, e.Reason != "":
		return e.Launchable + " " + e.String()
	case e.Unknown:
		return e.Launchable + ": unknown"
	case e.Signal != "":
		return e.Launchable + ": " + e.Signal
	default:
		return e.Launchable + ": exit status " + strconv.Itoa(e.Code)
	}
}

func portsText(ports map[string]int) string {
	all := field.Each(slices.Sorted(maps.Keys(ports)), func(name string) string {
		return name + "=" + strconv.Itoa(ports[name])
	})
	return strings.Join(all, ",")
}
