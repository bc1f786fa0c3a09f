package rcctl

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func auditCommand() *cli.Command {
	return leaf("audit [--rc REF] [--node NODE] [--since 1h] [--until TIME] [-o table|json|yaml]",
		"show who changed what, and when",
		`One entry for each act of an operator and each pass of a farm that changed something, oldest first. Farms keep
the newest 10,000 entries, for 30 days.

--since and --until take a length of time before now (90m, 36h) or a moment (2026-01-02T15:04:05Z). --rc also takes the
name or the whole id of a deleted rc, such as an earlier revision of a service, as long as an entry has its name; and
local-SERVICE for a local service. A deleted rc is shown with its id.

Examples:
  rcctl audit
  rcctl audit --rc web --since 24h
  rcctl audit --node node-17 --since 2026-01-02T15:00:00Z --until 2026-01-02T16:00:00Z
  rcctl audit --since 1h -o json | jq -r '.[] | select(.what == "delete") | .who'`,
		onConn(func(c *cli.Context) (store.AuditFilter, error) { return auditFilter(c, time.Now()) }, runAudit),
		option("rc", "only acts on this `REF`"), option("node", "only acts that this `NODE` had to do with"),
		[]cli.Flag{&cli.StringFlag{Name: "since", Value: "1h", Usage: "only acts of this `TIME` or later; 0 for all"}},
		option("until", "only acts before this `TIME`"), outputFlag(),
	)
}

const momentAllowed = `a length of time before now, such as "90m", or a moment, such as "2026-01-02T15:04:05Z"`

// moment returns the zero time for an empty text and for 0.
func moment(c *cli.Context, name string, now time.Time) (time.Time, error) {
	text := c.String(name)
	if text == "" && !c.IsSet(name) || text == "0" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, badFlag(c, "--"+name, text, momentAllowed)
	}
	return at, nil
}

// auditFilter reads all flags except --rc.
func auditFilter(c *cli.Context, now time.Time) (f store.AuditFilter, err error) {
	if _, err := noArgs(c); err != nil {
		return f, err
	}
	if f.Since, err = moment(c, "since", now); err != nil {
		return f, err
	}
	if f.Until, err = moment(c, "until", now); err != nil {
		return f, err
	}
	if !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return f, badOption(c, "until", "a moment after --since, which is "+inspect.At(f.Since))
	}
	f.Node = c.String("node")
	return f, nil
}

func runAudit(s *conn, filter store.AuditFilter) error {
	names, badRCs, err := s.allNames(s.Context)
	if err != nil {
		return err
	}
	var ids []string // of the controllers that --rc names
	if ref := s.String("rc"); ref != "" {
		if ids, err = s.idsOf(ref, names); err != nil {
			return err
		}
	}
	if len(ids) == 1 {
		filter.RCID = ids[0]
	}
	records, corrupt, err := s.ListAudit(s.Context, filter)
	if err != nil {
		return err
	}
	if len(ids) > 1 {
		records = slices.DeleteFunc(records, func(a store.Audit) bool { return !slices.Contains(ids, a.RCID) })
	}
	former := map[string]string{}
	if slices.ContainsFunc(records, func(a store.Audit) bool { return a.RCID != "" && names[a.RCID] == "" }) {
		if former, err = s.formerNames(s.Context, names); err != nil {
			return err
		}
	}
	views := inspect.JoinAudit(records, names, former)
	if len(views) == 0 {
		if err := s.empty(); err != nil {
			return err
		}
	}
	return s.print(views, append(corrupt, badRCs...), func(w io.Writer) error { return writeAudit(w, views) })
}

// idsOf returns the ids of the controllers that --rc names: one with a record, or deleted ones that had this name or
// id. A local service has the id of pod.LocalRC.
func (s *conn) idsOf(ref string, names map[string]string) ([]string, error) {
	if field.IsULID(rc.UnitOf(ref)) {
		return []string{ref}, nil // its record may be gone
	}
	rec, missing := s.find(ref)
	switch local := (pod.Identity{RCID: ref}).Local(); {
	case missing == nil:
		return []string{rec.Value.ID}, nil
	case !isMissing(missing):
		return nil, missing
	case local:
		return []string{ref}, nil
	}
	former, err := s.formerNames(s.Context, names)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(former)) {
		if former[id] == ref {
			ids = append(ids, id)
		}
	}
	if ids == nil {
		return nil, missing
	}
	return ids, nil
}

func (s *conn) formerNames(ctx context.Context, names map[string]string) (map[string]string, error) {
	all, _, err := s.ListAudit(ctx, store.AuditFilter{})
	return inspect.FormerNames(all, names), err
}

func writeAudit(w io.Writer, views []inspect.AuditView) error {
	if len(views) == 0 {
		_, err := fmt.Fprintln(w, "no entries in that time; --since 0 shows all")
		return err
	}
	for _, v := range views {
		parts := []string{v.At.Format(time.RFC3339), v.What}
		switch local := (pod.Identity{RCID: v.RCID}).LocalService(); {
		case local != "":
			parts = append(parts, "service "+local+" of node "+strings.Join(v.Nodes, ","))
		case v.RCGone && v.RCName != "":
			parts = append(parts, "rc "+v.RCName+" ("+v.RCID+", gone)")
		case v.RCName != "":
			parts = append(parts, "rc "+v.RCName)
		case v.RCID != "":
			parts = append(parts, "rc "+v.RCID)
		case len(v.Nodes) > 0:
			parts = append(parts, "node "+strings.Join(v.Nodes, ","))
		}
		if _, err := fmt.Fprintf(w, "%s  by %s\n", clean(strings.Join(parts, "  ")), clean(v.Who)); err != nil {
			return err
		}
		for _, line := range v.Changes {
			fmt.Fprintln(w, "    "+clean(forTerminal(line)))
		}
	}
	return nil
}
