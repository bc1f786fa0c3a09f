package scale

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// The bounds of a request.
const (
	MaxBytes    = 1 << 20 // of the JSON
	MaxReplicas = 1000    // of one service on one node
	MaxIndex    = 9_999   // as of a controller's replicas
	maxText     = 256     // bytes of what names the epoch
)

// Validate returns what is wrong with the request, field by field. What the manifest says is for the node to judge.
func (r Request) Validate() error {
	var errs field.Errors
	errs.CheckName("service", r.Service)
	if len(r.Assignments) == 0 && r.Replicas > MaxReplicas {
		errs.Add("replicas", r.Replicas, fmt.Sprintf("0 to %d", MaxReplicas))
	}
	r.checkAssignments(&errs)
	if r.Spec != nil && (len(r.Spec.Manifest) == 0 || r.Spec.Manifest[0] != '{') {
		errs.Add("spec.manifest", nil, "a manifest")
	}
	if e := r.Epoch; e != nil {
		for _, text := range []struct{ name, value string }{{"epoch.nonce", e.Cluster}, {"epoch.rc_id", e.RCID}, {"epoch.term", e.Term}} {
			if text.value == "" || len(text.value) > maxText {
				errs.Add(text.name, field.Cut(text.value, maxText), fmt.Sprintf("1 to %d bytes", maxText))
			}
		}
		if r.Revision < 1 {
			errs.Add("revision", r.Revision, "1 or more, with an epoch")
		}
	}
	if r.Revision < 0 {
		errs.Add("revision", r.Revision, "0 (none) or more")
	}
	return errs.Err()
}

func (r Request) checkAssignments(errs *field.Errors) {
	roles, total := map[string]bool{}, 0
	for i, a := range r.Assignments {
		path := fmt.Sprintf("assignments[%d]", i)
		errs.CheckName(path+".role", a.Role)
		if roles[a.Role] {
			errs.Add(path+".role", a.Role, "a role that no other assignment has")
		}
		roles[a.Role] = true
		seen := map[uint32]bool{}
		for j, index := range a.Indices {
			at := fmt.Sprintf("%s.indices[%d]", path, j)
			switch {
			case index > MaxIndex:
				errs.Add(at, index, fmt.Sprintf("0 to %d", MaxIndex))
			case seen[index]:
				errs.Add(at, index, "an index that this role does not have yet")
			}
			seen[index] = true
		}
		total += len(a.Indices)
	}
	if total > MaxReplicas {
		errs.Add("assignments", total, fmt.Sprintf("0 to %d indices in all", MaxReplicas))
	}
}
