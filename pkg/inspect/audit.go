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

// AuditView is one act: who did what, to which controller and nodes, and what was different afterwards.
type AuditView struct {
	store.Audit
	RCName string `json:"rc_name,omitempty"` // empty when the rc has no readable record, and no act tells what it was
	RCGone bool   `json:"rc_gone,omitempty"` // it has no readable record
}

// JoinAudit names the controllers of acts. Names are by the ids of controllers: of those that have a record, and those
// that had one.
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

// NameLine is the line of an act that gives a controller its name, or takes it.
func NameLine(name string, made bool) string {
	if made {
		return fmt.Sprintf("name: (none) -> %q", name)
	}
	return fmt.Sprintf("name: %q -> (none)", name)
}

// What lines tell of names.
var (
	nameLine    = regexp.MustCompile(`^name: (?:\(none\) -> "([^"]*)"|"([^"]*)" -> \(none\))$`)
	serviceLine = regexp.MustCompile(`^service ([-a-z0-9]+): `)
)

// FormerNames returns the names of controllers without a record, by their ids, as far as acts tell them: who made one
// or deleted it says its name, and those of a service's revisions follow from the service's and from their ids. names
// are those of controllers with a record.
func FormerNames(acts []store.Audit, names map[string]string) map[string]string {
	services, former := map[string]string{}, map[string]string{} // by unit, and by controller
	for id, name := range names {
		if _, suffix, is := revisionOf(id); is {
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
		if unit, suffix, is := revisionOf(a.RCID); is && services[unit] != "" {
			former[a.RCID] = services[unit] + suffix
		}
	}
	return former
}

// revisionOf returns the unit of a service's controller, and what follows the service's name in that of the controller.
func revisionOf(id string) (unit, suffix string, is bool) {
	if unit = rc.UnitOf(id); unit == id {
		return "", "", false
	}
	number, before := strings.CutSuffix(id[len(unit)+1:], "-pre")
	suffix = "-r" + number
	if before {
		suffix += "-pre-deploy"
	}
	return unit, suffix, true
}

// Deed is one write of a command.
type Deed struct {
	What string // that was written, such as "the drain of node n1"
	Show string // the command that shows it
	// Unknown: Consul may have got it and has not said what came of it.
	Unknown bool
}

// maxDeeds bounds how many writes are named one by one.
const maxDeeds = 5

// Written says what a command that failed has written.
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
			lines = append(lines, fmt.Sprintf("it is not known whether this was written: %s; to see: %s", d.What, d.Show))
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
