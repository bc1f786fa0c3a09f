package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func labelCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "label", Usage: "show, set and remove labels of a pod, a node or an rc",
		UsageText: "rcctl label KIND NAME [KEY=VALUE ...] [KEY- ...] [--rc REF] [--node NODE] [--wait [--timeout TIME]] [-o table|json|yaml]",
		Description: `KIND is pod, node or rc. Without labels it shows those that there are, and which of them were set by people. KEY=VALUE sets
a label, KEY- removes one that was set so; all of them in one transaction.

node  Labels lie on top of those that the node's preparer was started with: they win where both have a key, and KEY- shows
      the preparer's own again. From then on no pod is placed there by the former labels. A pod whose controller does
      not select the node any more is moved, unless the controller is static.
pod   The owner of its controller is asked to write them, and no process restarts; --wait waits for that. They win over
      pod_labels and those of the manifest. They go when the pod stops or moves to another node. --rc and --node choose
      where several pods bear the name.
rc    They say which farms may own it. The next rcctl apply sets those of its document again. A revision of a service is
      refused (exit code 4): change labels in the service's document.

Examples:
  rcctl label node node-17
  rcctl label node node-17 disk=ssd rack-
  rcctl label pod web-main-0 debug=yes --wait
  rcctl label rc web tier=front`,
		Flags: append(append(podFlags(), outputFlag()),
			waitFlags("until the owner of the pod has labelled it, or says why not")...),
		Action: onConn(readLabelArgs, runLabel),
	})
}

const labelsAllowed = `KEY=VALUE to set a label or KEY- to remove one, in Kubernetes' syntax for labels`

// labelArgs is what a command line says about labels of one object.
type labelArgs struct {
	kind   labels.Kind
	name   string
	set    map[string]string
	remove []string
}

func (a *labelArgs) changes() bool { return len(a.set)+len(a.remove) > 0 }

func readLabelArgs(c *cli.Context) (args labelArgs, err error) {
	args.kind = labels.Kind(c.Args().First())
	name, rest := c.Args().Get(1), slices.Clone(c.Args().Slice())
	rest = rest[min(2, len(rest)):]
	switch args.kind {
	case labels.KindPod:
		args.name, err = checkPod(c, name)
	case labels.KindNode:
		args.name, err = nodeName.check(c, name)
	case labels.KindRC:
		args.name, err = rcRef.check(c, name)
	default:
		return args, badFlag(c, "KIND", string(args.kind), field.Or(labels.KindPod, labels.KindNode, labels.KindRC))
	}
	if err != nil {
		return args, err
	}
	if args.kind != labels.KindPod {
		for _, flag := range []string{"rc", "node", "wait", "timeout"} {
			if c.IsSet(flag) {
				return args, badFlag(c, "--"+flag, c.String(flag), "for a pod only, not for a "+string(args.kind))
			}
		}
	}
	if len(rest) > 0 {
		err = args.parse(c, rest)
	}
	return args, err
}

// parse reads what labels are to be set and removed.
func (a *labelArgs) parse(c *cli.Context, args []string) error {
	if len(args) > labels.MaxLabels {
		return badFlagError(c, "LABEL", &field.Error{Value: field.Text(fmt.Sprintf("%d labels", len(args))), Allowed: fmt.Sprintf("at most %d", labels.MaxLabels)})
	}
	a.set = map[string]string{}
	seen := map[string]bool{}
	for _, arg := range args {
		key, value, sets := strings.Cut(arg, "=")
		if !sets {
			var removes bool
			if key, removes = strings.CutSuffix(arg, "-"); !removes {
				return badFlag(c, "LABEL", arg, labelsAllowed)
			}
		}
		one, gone := map[string]string{key: value}, []string(nil)
		if !sets {
			one, gone = nil, []string{key}
		}
		if err := labels.Check(a.kind, one, gone); err != nil {
			allowed := labelsAllowed
			if errs, is := errors.AsType[field.Errors](err); is && field.IsLabel(key, value) {
				allowed = errs[0].Allowed
			}
			return badFlag(c, "LABEL", arg, allowed)
		}
		if seen[key] {
			return badFlag(c, "LABEL", arg, "each key once")
		}
		seen[key] = true
		if sets {
			a.set[key] = value
		} else {
			a.remove = append(a.remove, key)
		}
	}
	return nil
}

// labelled is what a command labels: its name for people, and for the package labels.
type labelled struct {
	name string
	of   labels.Object
	show string // the command that shows what was done to it
}

func runLabel(s *conn, args labelArgs) error {
	target, err := findLabelled(s, args)
	if err != nil {
		return err
	}
	if !args.changes() {
		return showLabels(s, target)
	}
	done, err := changeLabels(s.Context, s, target, args)
	switch {
	case err != nil:
		return err
	case len(done.Lines) == 0:
		fmt.Fprintf(s.out, "%s %s unchanged; nothing was written\n", target.of.Kind, target.name)
		return nil
	case target.of.Kind != labels.KindPod:
		fmt.Fprintf(s.out, "%s %s labelled\n", target.of.Kind, target.name)
		printLines(s.out, done.Lines)
		return nil
	}
	fmt.Fprintf(s.out, "asked the owner of rc %s to label %s on %s\n", target.of.Pod.RCID, target.name, done.Node)
	printLines(s.out, done.Lines)
	if s.Bool("wait") {
		there := copyOf{Identity: target.of.Pod, name: target.name, node: done.Node}
		return waitAnswered(s.Context, s, there, done.Request, "labelled", limitOf(s.flags), func(ctx context.Context) error {
			return s.isLabelled(ctx, target, args)
		})
	}
	fmt.Fprintf(s.out, "watch: rcctl label pod %s\n", target.name)
	return nil
}

// findLabelled finds the object that the command line means.
func findLabelled(s *conn, args labelArgs) (labelled, error) {
	switch args.kind {
	case labels.KindNode:
		return labelled{args.name, labels.NodeObject(args.name), "rcctl audit --node " + args.name}, nil
	case labels.KindRC:
		found, err := s.find(args.name)
		id := found.Value.ID
		return labelled{found.Value.Name, labels.RCObject(id), "rcctl audit --rc " + id}, err
	default:
	}
	view, err := s.findPod(args.name)
	if err != nil {
		return labelled{}, err
	}
	t := labelled{view.Name, labels.PodObject(view.Identity()), "rcctl audit --node " + view.Node}
	t.of.Node = view.Node
	switch view.Kind {
	case inspect.Placed:
		return t, nil
	case inspect.Local:
		return t, refusedf("pod %s is of a local service: its labels are in the request to its node: rcctl scale-request %s; nothing was written", view.Name, view.Node)
	default:
		return t, refusedf("pod %s is not placed on %s: what runs there is to go, or to be taken over; nothing was written", view.Name, view.Node)
	}
}

// changeLabels changes labels and notes how that ended.
func changeLabels(ctx context.Context, s *conn, t labelled, args labelArgs) (done labels.Change, err error) {
	err = s.writing(ctx, 1, func(ctx context.Context, by string) error { // it tries again by itself
		done, err = labels.NewApplicator(s.Store, by).ChangeLabels(ctx, t.of, args.set, args.remove)
		if len(done.Lines) == 0 && err == nil {
			return nil
		}
		return s.did(fmt.Sprintf("%s %s: label", t.of.Kind, t.name), t.show, err)
	})
	return done, t.asError(err)
}

// isLabelled returns why a pod whose owner was asked to label it does not have these labels although nothing is left of
// the request: it went with a restore of the records, or somebody has changed the labels again.
func (s *conn) isLabelled(ctx context.Context, t labelled, args labelArgs) error {
	found, err := labels.NewApplicator(s.Store, "").GetLabels(ctx, t.of)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return waitEndedf("pod %s: the request is gone, and so is the pod, or it was moved", t.name)
	case err != nil:
		return err
	}
	var other []string
	for _, key := range slices.Sorted(maps.Keys(args.set)) {
		if is, has := found.Set[key]; !has || is != args.set[key] {
			other = append(other, key)
		}
	}
	for _, key := range args.remove {
		if _, has := found.Set[key]; has {
			other = append(other, key)
		}
	}
	if len(other) == 0 {
		return nil
	}
	return waitEndedf("pod %s: the request is gone, and these labels are not as asked: %s; an earlier state was restored, or somebody has changed "+
		"them again; look with: rcctl label pod %s", t.name, strings.Join(other, ", "), t.name)
}

// asError gives an error of the package labels its exit code.
func (t labelled) asError(err error) error {
	refused, isRefused := errors.AsType[*labels.RefusedError](err)
	switch {
	case isRefused:
		return refusedf("%s", refused.Error())
	case errors.Is(err, store.ErrNotFound) && t.of.Kind == labels.KindNode:
		return noNode(t.name)
	case errors.Is(err, store.ErrNotFound):
		return notFoundf("%s %s is gone or was moved; nothing was written", t.of.Kind, t.name)
	}
	return err
}

// labelView is what -o json shows.
type labelView struct {
	Kind   labels.Kind       `json:"kind"`
	Name   string            `json:"name"`
	Node   string            `json:"node,omitempty"` // where a pod is placed
	RCID   string            `json:"rc_id,omitempty"`
	Labels map[string]string `json:"labels"` // all
	Set    map[string]string `json:"set"`    // those that operators have set
	// Waiting is what the owner of a pod is still to change, a line for each label.
	Waiting []string `json:"waiting,omitempty"`
}

func showLabels(s *conn, t labelled) error {
	found, err := labels.NewApplicator(s.Store, "").GetLabels(s.Context, t.of)
	if err != nil {
		return t.asError(err)
	}
	v := labelView{Kind: t.of.Kind, Name: t.name, Node: t.of.Node, RCID: t.of.Pod.RCID, Labels: found.Labels, Set: found.Set, Waiting: found.Waiting}
	if t.of.Kind == labels.KindRC {
		v.RCID = t.of.Name
	}
	return s.print(v, nil, func(w io.Writer) error {
		tb := table{header: []string{"KEY", "VALUE", "FROM"}, paint: -1}
		for _, key := range slices.Sorted(maps.Keys(v.Labels)) {
			tb.rows = append(tb.rows, []string{key, v.Labels[key], v.from(key)})
		}
		if len(tb.rows) == 0 {
			_, err := fmt.Fprintf(w, "%s %s has no labels\n", v.Kind, v.Name)
			return err
		}
		if err := tb.write(w, coloured(w)); err != nil || len(v.Waiting) == 0 {
			return err
		}
		fmt.Fprintln(w, "asked of the owner, and not written yet:")
		printLines(w, v.Waiting)
		return nil
	})
}

// from says where a label comes from.
func (v *labelView) from(key string) string {
	_, isSet := v.Set[key]
	switch {
	case v.Kind == labels.KindRC:
		return "rc"
	case isSet:
		return "operators"
	case v.Kind == labels.KindNode:
		return "preparer"
	case pod.IsReserved(key):
		return "rcfarm"
	default:
		return "rc or manifest"
	}
}
