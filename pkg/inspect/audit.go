package inspect

import (
	"time"

	"github.com/rcfarm/rcfarm/pkg/store"
)

// AuditView is one act: who did what, to which controller and nodes, and what was different afterwards.
type AuditView struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Who     string    `json:"who"`
	What    string    `json:"what"`
	RCID    string    `json:"rc_id,omitempty"`
	RCName  string    `json:"rc_name,omitempty"` // empty when the rc has no readable record
	Nodes   []string  `json:"nodes,omitempty"`
	Changes []string  `json:"changes"`
}

// JoinAudit names the controllers of acts. rcNames maps ids of controllers to names.
func JoinAudit(acts []store.Audit, rcNames map[string]string) []AuditView {
	views := make([]AuditView, 0, len(acts))
	for _, a := range acts {
		v := AuditView{ID: a.ID, At: a.At.UTC(), Who: a.Who, What: a.What, RCID: a.RCID, RCName: rcNames[a.RCID], Nodes: a.Nodes, Changes: []string{}}
		v.Changes = append(v.Changes, a.Changes...)
		views = append(views, v)
	}
	return views
}
