package inspect

import (
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
