package store

import (
	"fmt"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// People write these records too, and a restore brings back old ones. So most records have a Check, which returns why a
// program cannot act on the record. Programs accept any text and time in a breaker, an audit record, an incident and
// the record at settled.

// Check accepts unknown kinds, because a newer version may have written them. The owner answers them.
func (r *Request) Check() error {
	var errs field.Errors
	if r.ID == "" || strings.Contains(r.ID, "/") {
		errs.Add("id", r.ID, "a ULID")
	}
	if r.RCID == "" || strings.Contains(r.RCID, "/") {
		errs.Add("rc_id", r.RCID, "the id of a controller")
	}
	if r.Kind == "" {
		errs.Missing("kind", field.Or(ForgetPod, SweepOrphan, RepairReservation, LabelPod))
	}
	errs.CheckName("node", r.Node)
	if id := r.Pod; id.Index < 0 || id.RCID != "" && id.RCID != r.RCID {
		errs.Add("pod", id.String(), "a pod of the controller that is asked, with an index of 0 or more")
	}
	if r.Kind == LabelPod {
		r.checkLabels(&errs)
	}
	return errs.Err()
}

func (r *Request) checkLabels(errs *field.Errors) {
	if r.Pod == (pod.Identity{}) {
		errs.Missing("pod", "the pod that is to be labelled")
	}
	if len(r.Labels)+len(r.Remove) == 0 {
		errs.Missing("labels", "labels to set, or keys in remove")
	}
	errs.CheckLabels("labels", r.Labels, field.MaxLabels)
	removed := make(map[string]string, len(r.Remove))
	for _, key := range r.Remove {
		removed[key] = ""
	}
	errs.CheckLabels("remove", removed, field.MaxLabels)
	for key, value := range r.Labels {
		if pod.IsReserved(key) {
			errs.Add("labels."+key, value, pod.ReservedAllowed)
		}
	}
}

// Check returns why a stored member record cannot be a farm's.
func (m *Member) Check() error {
	var errs field.Errors
	errs.CheckName("id", m.ID)
	if len(m.RCSelector) > rc.MaxSelectorBytes {
		errs.Add("rc_selector", field.Text(fmt.Sprintf("%d bytes", len(m.RCSelector))),
			fmt.Sprintf("at most %d bytes", rc.MaxSelectorBytes))
	}
	return errs.Err()
}

// Check returns why a stored record of dead nodes cannot be used.
func (g *Gone) Check() error {
	var errs field.Errors
	for name, d := range g.Nodes {
		field.CheckRange(&errs, "nodes."+name+".seen_ms", d.SeenMS, 0, MaxSeenMS)
	}
	return errs.Err()
}

// MaxSeenMS bounds how long a node was seen dead, in milliseconds.
const MaxSeenMS = int64(field.MaxWait / time.Millisecond)
