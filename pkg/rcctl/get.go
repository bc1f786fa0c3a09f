package rcctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func getCommand() *cli.Command {
	return leaf("get REF [-o table|json|yaml]", "show one rc: what it asks for, its pods' manifest, its status",
		`-o yaml prints the document of the rc, without fields that have their default. Below it are fields that only
rcfarm sets; rcctl apply ignores those. -o json has defaults filled in.

Examples:
  rcctl rc get web
  rcctl rc get web -o yaml > rc.yaml && vi rc.yaml && rcctl apply -f rc.yaml
  rcctl rc get web -o json | jq .status.conditions`,
		onRC(runGet), outputFlag(),
	)
}

func runGet(s *conn, found store.Rec[rc.RC]) error {
	r := &found.Value
	o, err := s.observe(s.Context, r.ID)
	if err != nil {
		return err
	}
	view := inspect.NewRCView(r, o.Status, o.Farms)
	m, err := s.Manifest(s.Context, r.ManifestDigest)
	switch {
	case err == nil:
		view.Manifest = m
	case isUnusable(err):
		s.note("the manifest of rc %s is missing or unreadable (%v); applying the document again restores it",
			r.Name, err)
	default:
		return fmt.Errorf("read manifest of rc %s: %w", r.Name, err)
	}
	if s.String("output") == "yaml" {
		shown := inspect.NewRCDocument(r, &view)
		text, err := shown.Text()
		if err != nil {
			return err
		}
		_, err = s.out.Write(text)
		return err
	}
	rollout, err := s.rolloutText(s.Context, r)
	if err != nil {
		return err
	}
	return s.print(view, nil, func(w io.Writer) error {
		return writeRC(w, view, rollout, inspect.NewStatusView(r, o.Status, o.Farms), coloured(w), time.Now())
	})
}

func (s *conn) farms(ctx context.Context) ([]store.Member, error) {
	recs, _, err := s.Farms.List(ctx, store.Default)
	return values(recs), err
}

func (s *conn) rolloutText(ctx context.Context, r *rc.RC) (string, error) {
	rolls, err := s.Deployments.RolloutFor(ctx, r)
	switch {
	case isCorrupt(err):
		return "its record cannot be read: " + err.Error(), nil
	case err != nil || rolls == nil:
		return "", err
	}
	return rolls.Term() + " is in charge", nil
}

func writeRC(w io.Writer, v inspect.RCView, rollout string, st inspect.StatusView, colours bool, now time.Time) error {
	groups := field.Each(v.ReplicaGroups, groupText)
	if v.Mode == rc.EachNode {
		groups = []string{fmt.Sprintf("one on each matching node, %d now", v.Replicas)}
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "%s:\t%s\n", name, clean(fmt.Sprintf(format, args...)))
	}
	line("Name", "%s", v.Name)
	line("ID", "%s", v.ID)
	line("Generation", "%d (changed by %s)", v.Generation, v.ChangedBy)
	line("Labels", "%s", inspect.LabelText(v.Labels))
	line("Selector", "%s", cmp.Or(v.NodeSelector, "(every node)"))
	line("Replicas", "%s", strings.Join(groups, ", "))
	line("Minimum", "%d available, surge %d", v.MinAvailable, v.MaxSurge)
	line("Strategy", "%s", v.Strategy)
	line("Node loss", "%s after %s (preparer gone: %s)",
		v.NodeLoss.Action, time.Duration(v.NodeLoss.After), time.Duration(v.NodeLoss.UnmanagedAfter))
	line("Deadline", "%s to become available, when upgraded or moved", time.Duration(v.ProgressDeadline))
	if !v.Spread.IsZero() {
		line("Spread", "over the node label %s", v.Spread)
	}
	for _, p := range v.Affinity {
		line("Affinity", "%s (weight %d)", p.Selector, p.Weight)
	}
	if v.Placing != "" {
		line("Placing", "%s", v.Placing)
	}
	for _, g := range v.ReplicaGroups {
		if text := preferencesOf(&g); text != "" {
			line("Nodes of "+g.Role, "%s", text)
		}
	}
	if rollout != "" {
		line("Rollout", "%s", rollout)
	}
	if v.DeletedAt != nil {
		line("Deleted", "%s ago", inspect.Age(now, *v.DeletedAt))
	}
	line("Manifest", "%s", inspect.Short(v.ManifestDigest))
	for _, g := range v.ReplicaGroups {
		if digest := v.GroupManifests[g.Role]; digest != "" {
			line("Manifest of "+g.Role, "%s (%s of its own)", inspect.Short(digest), strings.Join(ownOf(&g), ", "))
		}
	}
	if v.Manifest != nil {
		for _, l := range v.Manifest.Launchables {
			line("  "+l.Name, "%s %s", l.Artifact.Kind, cmp.Or(l.Artifact.URL, l.Artifact.Path, l.Artifact.Ref))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return writeStatus(w, st, colours, now)
}

// preferencesOf describes the preferences that a group has in place of the controller's.
func preferencesOf(g *rc.ReplicaGroup) string {
	var parts []string
	if !g.Spread.IsZero() {
		parts = append(parts, fmt.Sprintf("spread over the node label %s", g.Spread))
	}
	for _, p := range g.Affinity {
		parts = append(parts, fmt.Sprintf("%s first (weight %d)", p.Selector, p.Weight))
	}
	if g.Placing != "" {
		parts = append(parts, "placing "+string(g.Placing))
	}
	return strings.Join(parts, "; ")
}

func groupText(g rc.ReplicaGroup) string {
	text := fmt.Sprintf("%s %d", g.Role, *g.Count)
	if g.Ordered {
		text += " (ordered)"
	}
	return text
}

func ownOf(g *rc.ReplicaGroup) []string {
	var own []string
	if len(g.Env) > 0 {
		own = append(own, "env")
	}
	if g.Command != "" {
		own = append(own, "command")
	}
	if g.Resources != nil {
		own = append(own, "resources")
	}
	return own
}

func listCommand() *cli.Command {
	return leaf("list [-l SELECTOR] [-o table|json|yaml]", "list all rcs",
		`Examples:
  rcctl rc list
  rcctl rc list -l team=shop
  rcctl rc list -o json | jq -r '.[] | select(.state != "Converged") | .name'`,
		onList(runList), selectorFlag("rcs"), outputFlag(),
	)
}

func runList(s *conn) error {
	recs, corrupt, err := s.RCs.List(s.Context, store.Default)
	if err != nil {
		return err
	}
	found, corruptStatus, err := s.Statuses.List(s.Context, store.Default)
	if err != nil {
		return err
	}
	farms, err := s.farms(s.Context)
	if err != nil {
		return err
	}
	views := selected(s, "rc", inspect.JoinRCs(recs, found, farms),
		func(v *inspect.RCView) map[string]string { return v.Labels })
	err = printList(s, views, append(corrupt, corruptStatus...),
		none("rcs", s.IsSet("selector"), "create one: rcctl apply -f rc.yaml"),
		columns("NAME", "ID", "AVAILABLE", "STATE", "GEN", "MANIFEST").painted(3, rcColour),
		func(v *inspect.RCView) []string {
			available := "-"
			if v.Status != nil {
				available = fmt.Sprint(v.Status.Available)
			}
			return []string{
				v.Name, v.ID, fmt.Sprintf("%s/%d", available, v.Replicas), v.State,
				fmt.Sprint(v.Generation), inspect.Short(v.ManifestDigest),
			}
		})
	return errors.Join(err, noteBreaker(s))
}
