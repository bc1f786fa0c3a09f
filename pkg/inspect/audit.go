package inspect

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// AuditView is an audit record with the name of its controller.
type AuditView struct {
	store.Audit
	RCName string `json:"rc_name,omitempty"` // empty if the rc has no readable record, and no audit record has its name
	RCGone bool   `json:"rc_gone,omitempty"` // the rc has no readable record
}

// JoinAudit adds the names of controllers, by id. names has those with a record, former the deleted ones.
func JoinAudit(acts []store.Audit, names, former map[string]string) []AuditView {
	views := make([]AuditView, 0, len(acts))
	for _, a := range acts {
		a.At, a.Changes = a.At.UTC(), append([]string{}, a.Changes...)
		v := AuditView{Audit: a, RCName: names[a.RCID]}
		if v.RCName == "" && a.RCID != "" && !(pod.Identity{RCID: a.RCID}).Local() {
			v.RCName, v.RCGone = former[a.RCID], true
		}
		views = append(views, v)
	}
	return views
}

// NameLine is the audit line about the name of a controller that was made or deleted.
func NameLine(name string, made bool) string {
	if made {
		return fmt.Sprintf("name: (none) -> %q", name)
	}
	return fmt.Sprintf("name: %q -> (none)", name)
}

var (
	nameLine    = regexp.MustCompile(`^name: (?:\(none\) -> "([^"]*)"|"([^"]*)" -> \(none\))$`)
	serviceLine = regexp.MustCompile(`^service ([-a-z0-9]+): `)
)

// FormerNames finds in audit records the names of controllers without a record. All names are by id.
func FormerNames(acts []store.Audit, names map[string]string) map[string]string {
	services, former := map[string]string{}, map[string]string{} // by unit, and by controller
	for id, name := range names {
		if suffix, is := rc.NameOf("", id); is {
			services[rc.UnitOf(id)] = strings.TrimSuffix(name, suffix)
		}
	}
	for _, a := range acts {
		for _, line := range a.Changes {
			if m := serviceLine.FindStringSubmatch(line); m != nil {
				services[rc.UnitOf(a.RCID)] = m[1]
			}
			if m := nameLine.FindStringSubmatch(line); m != nil && names[a.RCID] == "" {
				former[a.RCID] = m[1] + m[2]
			}
		}
	}
	for _, a := range acts {
		if names[a.RCID] != "" || former[a.RCID] != "" {
			continue
		}
		if service := services[rc.UnitOf(a.RCID)]; service != "" {
			if name, is := rc.NameOf(service, a.RCID); is {
				former[a.RCID] = name
			}
		}
	}
	return former
}

// Deed is one write of a command.
type Deed struct {
	What string // what was written, such as "the drain of node n1"
	Show string // the command that shows it
	// Consul may have received the write.
	Unknown bool
}

const maxDeeds = 5

// Written describes the writes of a command that failed.
func Written(deeds []Deed) []string {
	var done, lines []string
	for _, d := range deeds {
		if !d.Unknown {
			done = append(done, d.What)
		}
	}
	if len(done) > 0 {
		lines = append(lines, "this was written: "+field.Few(done, maxDeeds, "; "))
	}
	for _, d := range deeds {
		if d.Unknown {
			lines = append(lines,
				fmt.Sprintf("it is not known whether this was written: %s; to see: %s", d.What, d.Show))
		}
	}
	switch {
	case len(lines) == 0:
		return []string{"nothing was written"}
	case len(done) == len(deeds):
		lines[0] += "; nothing else was"
	}
	return lines
}
