package rcctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func podsCommand() *cli.Command {
	return leaf("pods [--rc REF] [--node NODE] [-l SELECTOR] [-o table|wide|json|yaml]",
		"list pods: where they are placed, and what their nodes report",
		`There is a line for each replica and each node that has a copy of it, or may have. The state is the node's
report (pending, fetching, installing, starting, running, ready, unhealthy, stopping, stopped, failed, orphaned), or
"placed" (the node has reported nothing yet), "lost" (the node is gone) or "unknown" (the node's report cannot be
read). Pods of local services have "(local)" in place of their rc. -l matches the labels that the farm gave a pod,
which include replication_controller_id and pod_id; a selector for one replication_controller_id reads only the
placements of that rc.

Examples:
  rcctl pods
  rcctl pods --rc web-r1
  rcctl pods -l app=web
  rcctl pods -o wide
  rcctl pods --node node-1 -o json | jq '.[] | select(.available | not)'`,
		onList(runPods), option("rc", "only pods of this `REF`"),
		option("node", "only pods on this `NODE`"), selectorFlag("pods"), wideOutputFlag(),
	)
}

func runPods(s *conn) error {
	views, bad, err := s.podViews()
	if err != nil {
		return err
	}
	tb := columns("POD", "NODE", "STATE", "AVAIL", "RESTARTS", "DIGEST", "RC", "MESSAGE").painted(2, podColour)
	row := podRow
	if s.String("output") == wideFormat {
		tb.header = []string{
			"POD", "NODE", "KIND", "STATE", "SINCE", "AVAIL", "RESTARTS", "LAST EXIT", "PORTS",
			"REVISION", "APPLIED", "DIGEST", "RC", "MESSAGE",
		}
		tb.paint, row = 3, widePodRow
	}
	return errors.Join(printList(s, views, bad, "no pods", tb, row), noteBreaker(s))
}

func checkPodFlags(c *cli.Context) error {
	if c.IsSet("rc") {
		if _, err := (noun{"--rc", rcRef.allowed}).check(c, c.String("rc")); err != nil {
			return err
		}
	}
	if c.IsSet("node") && c.String("node") == "" {
		return badFlag(c, "--node", "", nodeName.allowed)
	}
	return nil
}

// rcNames returns the names of controllers by id, for commands whose -l selects pods. If --rc or -l means one
// controller, it returns only the name of this controller, and its id.
func (s *conn) rcNames() (names map[string]string, rcID string, corrupt []error, err error) {
	if ref := s.String("rc"); ref != "" {
		rec, err := s.find(ref)
		if err != nil {
			return nil, "", nil, err
		}
		return map[string]string{rec.Value.ID: rec.Value.Name}, rec.Value.ID, nil, nil
	}
	id := labels.FixedRC(selectorOf(s.flags))
	if id == "" {
		names, corrupt, err = s.allNames(s.Context)
		return names, "", corrupt, err
	}
	rec, err := s.RCs.Get(s.Context, store.Default, id)
	switch {
	case isMissing(err):
		return nil, id, nil, nil // pods of a deleted controller may be left
	case isCorrupt(err):
		return nil, id, []error{err}, nil
	}
	return map[string]string{id: rec.Value.Name}, id, nil, err
}

func (s *conn) allNames(ctx context.Context) (names map[string]string, corrupt []error, err error) {
	recs, corrupt, err := s.RCs.List(ctx, store.Default)
	if err != nil {
		return nil, nil, err
	}
	names = make(map[string]string, len(recs))
	for i := range recs {
		names[recs[i].Value.ID] = recs[i].Value.Name
	}
	return names, corrupt, nil
}

func values[T any](recs []store.Rec[T]) []T {
	return field.Each(recs, func(rec store.Rec[T]) T { return rec.Value })
}

func podRow(v *inspect.PodView) []string {
	owner := v.RCName
	if v.Kind == inspect.Local {
		owner = "(local)"
	}
	return []string{
		v.Name, v.Node, v.State, yesNo(v.Available), fmt.Sprint(v.Restarts),
		inspect.Short(v.Digest)[:min(8, len(v.Digest))], owner, v.Message,
	}
}

func widePodRow(v *inspect.PodView) []string {
	now, since, exit := time.Now(), "", ""
	if v.Since != nil {
		since = inspect.Age(now, *v.Since)
	}
	if v.LastExit != nil {
		exit = exitText(v.LastExit) + ", " + inspect.Age(now, v.LastExit.At) + " ago"
	}
	return []string{
		v.Name, v.Node, v.Kind, v.State, since, yesNo(v.Available), fmt.Sprint(v.Restarts), exit, portsText(v.Ports),
		fmt.Sprint(v.Revision), fmt.Sprint(v.AppliedRevision), inspect.Short(v.Digest), v.SlashName(), v.Message,
	}
}

func podColour(state string) colour {
	switch state {
	case string(pod.StateReady), string(pod.StateEnded):
		return green
	case string(pod.StateUnhealthy), string(pod.StateFailed), string(pod.StateCrashLooping), string(pod.StateOrphaned),
		inspect.Lost:
		return red
	default:
		return yellow
	}
}

const podAllowed = "a pod's name as rcctl pods shows it, such as web-main-0, or RC/ROLE.INDEX, such as web/main.0, " +
	"or a unique beginning of one"

func podFlags() []cli.Flag {
	return slices.Concat(
		option("rc", "only pods of this `REF`"), option("node", "only the copy on this `NODE`"),
	)
}

func checkPod(c *cli.Context, ref string) (string, error) {
	return checkPodName(c, ref, "-./", podAllowed)
}

func checkPodName(c *cli.Context, name, punctuation, allowed string) (string, error) {
	bad := strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune(punctuation, r) && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
	if name == "" || bad {
		return "", badFlag(c, "POD", name, allowed)
	}
	return name, checkPodFlags(c)
}

func onePod(c *cli.Context) (string, error) { return onlyArg(c, "POD", checkPod) }

// findPod returns errors of the same kinds as find.
func (s *conn) findPod(ref string) (inspect.PodView, error) {
	views, bad, err := s.podViews()
	if err != nil {
		return inspect.PodView{}, err
	}
	found := inspect.PodsNamed(views, ref)
	switch len(found) {
	case 0:
		if err := errors.Join(bad...); err != nil {
			return inspect.PodView{}, fmt.Errorf("no readable record is of pod %q: %w", ref, err)
		}
		return inspect.PodView{}, notFoundf("no pod has that name, rc and node: %q; rcctl pods shows all", ref)
	case 1:
		return found[0], nil
	}
	return inspect.PodView{}, ambiguousPod(s.flags, ref, found, func(v *inspect.PodView) string {
		return fmt.Sprintf("%s  %s on %s", v.SlashName(), v.Name, v.Node)
	})
}

func ambiguousPod[V any](c *cli.Context, ref string, found []V, line func(*V) string) error {
	return ambiguous(c, "POD", ref, "the name of one copy, perhaps with --node or --rc", found, line)
}

// placements reads the pods of all controllers if rcID is empty.
func (s *conn) placements(ctx context.Context, rcID string, level store.Level) (recs []store.Rec[pod.Placement],
	corrupt []error, err error,
) {
	if rcID == "" {
		return s.Pods.List(ctx, store.Default)
	}
	return s.Pods.List(ctx, level, rcID)
}

// podViews returns the pods that --rc, --node and --selector choose. It is not for commands whose -l selects something
// else.
func (s *conn) podViews() (views []inspect.PodView, bad []error, err error) {
	names, rcID, bad, err := s.rcNames()
	if err != nil {
		return nil, nil, err
	}
	placements, badPlacements, err := s.placements(s.Context, rcID, store.Default)
	if err != nil {
		return nil, nil, err
	}
	realities, badRealities, err := s.Realities.List(s.Context, store.Default)
	if err != nil {
		return nil, nil, err
	}
	nodes, badNodes, err := s.Nodes.List(s.Context, store.Default)
	if err != nil {
		return nil, nil, err
	}
	losses, _, err := s.losses(s.Context, nodes)
	if err != nil {
		return nil, nil, err
	}
	views = inspect.FilterPods(inspect.JoinPods(values(placements), values(realities), losses, names),
		rcID, s.String("node"))
	views = selected(s, "pod", views, (*inspect.PodView).LabelSet)
	inspect.MarkUnreadable(views, badRealities, s.Keys())
	return views, slices.Concat(bad, badPlacements, badRealities, badNodes), nil
}
