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
)

func labelCommand() *cli.Command {
	return leaf("label KIND NAME [KEY=VALUE ...] [KEY- ...] [--rc REF] [--node NODE] [--wait [--timeout TIME]] "+
		"[-o table|json|yaml]",
		"show, set and remove labels of a pod, a node or an rc",
		`KIND is pod, node or rc. Without labels it shows the present ones, and which of them were set by people.
KEY=VALUE sets a label, KEY- removes one that was set so; all of them in one transaction.

node  These labels override those with which the node's preparer was started; KEY- restores the preparer's own. No
      further pod is placed there by the former labels. A pod whose controller does not select the node any more is
      moved, unless the controller is static.
pod   The command asks the owner of the controller to write them; --wait waits for that. No process restarts. They
      override pod_labels and the labels of the manifest. They are removed when the pod stops or moves to another
      node. If several pods have the name, choose with --rc and --node.
rc    They decide which farms may own it. The next rcctl apply sets those of its document again. A revision of a
      service is refused (exit code 4): change labels in the service's document.

Examples:
  rcctl label node node-17
  rcctl label node node-17 disk=ssd rack-
  rcctl label pod web-main-0 debug=yes --wait
  rcctl label rc web tier=front`,
		onConn(readLabelArgs, runLabel), podFlags(), outputFlag(),
		waitFlags("until the owner of the pod has labelled it or declined"),
	)
}

const labelsAllowed = `KEY=VALUE to set a label or KEY- to remove one, in Kubernetes' syntax for labels`

type labelArgs struct {
	kind   labels.Kind
	name   string
	set    map[string]string
	remove []string
}

func (l *labelArgs) changes() bool { return len(l.set)+len(l.remove) > 0 }

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

func (l *labelArgs) parse(c *cli.Context, args []string) error {
	if len(args) > labels.MaxLabels {
		return badFlagError(c, "LABEL",
			&field.Error{
				Value:   field.Text(fmt.Sprintf("%d labels", len(args))),
				Allowed: fmt.Sprintf("at most %d", labels.MaxLabels),
			})
	}
	l.set = map[string]string{}
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
		if err := labels.Check(l.kind, one, gone); err != nil {
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
			l.set[key] = value
		} else {
			l.remove = append(l.remove, key)
		}
	}
	return nil
}

type labelled struct {
	name string
	of   labels.Object
	show string // the command that shows its audit entries
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
		s.printLine("%s %s unchanged; nothing was written", target.of.Kind, target.name)
		return nil
	case target.of.Kind != labels.KindPod:
		s.printLine("%s %s labelled", target.of.Kind, target.name)
		printLines(s.out, done.Lines)
		return nil
	}
	s.printLine("asked the owner of rc %s to label %s on %s", target.of.Pod.RCID, target.name, done.Node)
	printLines(s.out, done.Lines)
	if s.Bool("wait") {
		there := copyOf{Identity: target.of.Pod, name: target.name, node: done.Node}
		return waitAnswered(s.Context, s, there, done.Request, "labelled",
			limitOf(s.flags), func(ctx context.Context) error {
				return s.isLabelled(ctx, target, args)
			})
	}
	s.printLine("watch: rcctl label pod %s", target.name)
	return nil
}

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
		return t, unwrittenf("pod %s is of a local service, so its labels are in the request to its node; change them "+
			"there: rcctl scale-request %s", view.Name, view.Node)
	default:
		return t, unwrittenf("pod %s has no placement on %s: farms will stop the copy there, or adopt it",
			view.Name, view.Node)
	}
}

func changeLabels(ctx context.Context, s *conn, t labelled, args labelArgs) (done labels.Change, err error) {
	err = s.writing(ctx, 1, func(ctx context.Context, by string) error { // ChangeLabels itself retries
		done, err = labels.NewApplicator(s.Store, by).ChangeLabels(ctx, t.of, args.set, args.remove)
		if len(done.Lines) == 0 && err == nil {
			return nil
		}
		return s.did(fmt.Sprintf("%s %s: label", t.of.Kind, t.name), t.show, err)
	})
	return done, t.asError(err)
}

// isLabelled checks a pod after the owner has removed the request. It returns an error if the records were restored to
// an earlier state, or somebody has changed the labels again.
func (s *conn) isLabelled(ctx context.Context, t labelled, args labelArgs) error {
	found, err := labels.NewApplicator(s.Store, "").GetLabels(ctx, t.of)
	switch {
	case isMissing(err):
		return waitEndedf("pod %s: the request is gone, and the pod is gone or was moved", t.name)
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
	return waitEndedf("pod %s: the request is gone, and these labels are not as requested: %s; the records were "+
		"restored to an earlier state, or somebody has changed the labels again; look with: rcctl label pod %s",
		t.name, strings.Join(other, ", "), t.name)
}

func (l labelled) asError(err error) error {
	refused, isRefused := errors.AsType[*labels.RefusedError](err)
	switch {
	case isRefused:
		return refusedf("%s", refused.Error())
	case isMissing(err) && l.of.Kind == labels.KindNode:
		return noNode(l.name)
	case isMissing(err):
		return notFoundf("%s %s is gone or was moved; nothing was written", l.of.Kind, l.name)
	}
	return err
}

type labelView struct {
	Kind   labels.Kind       `json:"kind"`
	Name   string            `json:"name"`
	Node   string            `json:"node,omitempty"` // where a pod is placed
	RCID   string            `json:"rc_id,omitempty"`
	Labels map[string]string `json:"labels"` // all
	Set    map[string]string `json:"set"`    // labels that operators have set
	// one line for each label that the owner of a pod has not changed yet
	Waiting []string `json:"waiting,omitempty"`
}

func showLabels(s *conn, t labelled) error {
	found, err := labels.NewApplicator(s.Store, "").GetLabels(s.Context, t.of)
	if err != nil {
		return t.asError(err)
	}
	v := labelView{
		Kind: t.of.Kind, Name: t.name, Node: t.of.Node, RCID: t.of.Pod.RCID, Labels: found.Labels,
		Set: found.Set, Waiting: found.Waiting,
	}
	if t.of.Kind == labels.KindRC {
		v.RCID = t.of.Name
	}
	return s.print(v, nil, func(w io.Writer) error {
		tb := columns("KEY", "VALUE", "FROM")
		for _, key := range slices.Sorted(maps.Keys(v.Labels)) {
			tb.add(key, v.Labels[key], v.from(key))
		}
		if len(tb.rows) == 0 {
			_, err := fmt.Fprintf(w, "%s %s has no labels\n", v.Kind, v.Name)
			return err
		}
		if err := tb.write(w, coloured(w)); err != nil || len(v.Waiting) == 0 {
			return err
		}
		fmt.Fprintln(w, "requested, and not written by the owner yet:")
		printLines(w, v.Waiting)
		return nil
	})
}

func (l *labelView) from(key string) string {
	_, isSet := l.Set[key]
	switch {
	case l.Kind == labels.KindRC:
		return "rc"
	case isSet:
		return "operators"
	case l.Kind == labels.KindNode:
		return "preparer"
	case pod.IsReserved(key):
		return "rcfarm"
	default:
		return "rc or manifest"
	}
}
