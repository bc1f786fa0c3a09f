package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func getCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "get", Usage: "show one rc: what it asks for, its pods' manifest, its status",
		UsageText: "rcctl rc get REF [-o table|json|yaml]",
		Description: `-o yaml is the document that makes the rc what it is, with nothing in it that was left to a default, and below that what
only rcfarm sets: rcctl apply ignores that. -o json has defaults filled in.

Examples:
  rcctl rc get web
  rcctl rc get web -o yaml > rc.yaml && vi rc.yaml && rcctl apply -f rc.yaml
  rcctl rc get web -o json | jq .status.conditions`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onRC(runGet),
	})
}

func runGet(c *cli.Context, std *stdio, s *conn, found store.Rec[rc.RC]) error {
	r := &found.Value
	o, err := s.observe(c.Context, r.ID)
	if err != nil {
		return err
	}
	view := inspect.NewRCView(r, o.Status, o.Farms)
	m, err := s.Manifest(c.Context, r.ManifestDigest)
	switch {
	case err == nil:
		view.Manifest = m
	case errors.Is(err, store.ErrNotFound), isCorrupt(err):
		fmt.Fprintf(std.err, "rcctl: the manifest of rc %s is missing or unreadable (%v); applying the document again restores it\n", r.Name, err)
	default:
		return fmt.Errorf("read manifest of rc %s: %w", r.Name, err)
	}
	if c.String("output") == "yaml" {
		shown := inspect.NewRCDocument(r, &view)
		text, err := shown.Text()
		if err != nil {
			return err
		}
		_, err = std.out.Write(text)
		return err
	}
	return std.print(c, view, nil, func(w io.Writer) error {
		return writeRC(w, view, inspect.NewStatusView(r, o.Status, o.Farms), coloured(w), time.Now())
	})
}

// farms reads the living farms.
func (s *conn) farms(ctx context.Context) ([]store.Member, error) {
	recs, _, err := s.ListFarms(ctx)
	return values(recs), err
}

func writeRC(w io.Writer, v inspect.RCView, st inspect.StatusView, colours bool, now time.Time) error {
	groups := make([]string, len(v.ReplicaGroups))
	for i, g := range v.ReplicaGroups {
		groups[i] = fmt.Sprintf("%s %d", g.Role, *g.Count)
	}
	selector := v.NodeSelector
	if selector == "" {
		selector = "(every node)"
	}
	lines := [][2]string{
		{"Name", v.Name},
		{"ID", v.ID},
		{"Generation", fmt.Sprintf("%d (changed by %s)", v.Generation, v.ChangedBy)},
		{"Labels", inspect.LabelText(v.Labels)},
		{"Selector", selector},
		{"Replicas", strings.Join(groups, ", ")},
		{"Minimum", fmt.Sprintf("%d available, surge %d", v.MinAvailable, v.MaxSurge)},
		{"Strategy", string(v.Strategy)},
		{"Node loss", fmt.Sprintf("%s after %s (preparer gone: %s)", v.NodeLoss.Action, time.Duration(v.NodeLoss.After), time.Duration(v.NodeLoss.UnmanagedAfter))},
	}
	lines = append(lines, [2]string{"Deadline", time.Duration(v.ProgressDeadline).String() + " to become available, when upgraded or moved"})
	if v.Spread != "" {
		lines = append(lines, [2]string{"Spread", "over the node label " + v.Spread})
	}
	if v.Mutator != "" {
		lines = append(lines, [2]string{"Rollout", v.Mutator + " is in charge"})
	}
	if v.DeletedAt != nil {
		lines = append(lines, [2]string{"Deleted", inspect.Age(now, *v.DeletedAt) + " ago"})
	}
	lines = append(lines, [2]string{"Manifest", inspect.Short(v.ManifestDigest)})
	if v.Manifest != nil {
		for _, l := range v.Manifest.Launchables {
			lines = append(lines, [2]string{"  " + l.Name, l.Artifact.Kind + " " + l.Artifact.URL})
		}
	}
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, line := range lines {
		fmt.Fprintf(tw, "%s:\t%s\n", line[0], clean(line[1]))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return writeStatus(w, st, colours, now)
}
