package inspect

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// AuditView is one act: who did what, to which controller and nodes, and what was different afterwards.
type AuditView struct {
	store.Audit
	RCName string `json:"rc_name,omitempty"` // empty when the rc has no readable record
}

// JoinAudit names the controllers of acts. rcNames maps ids of controllers to names.
func JoinAudit(acts []store.Audit, rcNames map[string]string) []AuditView {
	views := make([]AuditView, 0, len(acts))
	for _, a := range acts {
		a.At, a.Changes = a.At.UTC(), append([]string{}, a.Changes...)
		views = append(views, AuditView{Audit: a, RCName: rcNames[a.RCID]})
	}
	return views
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
