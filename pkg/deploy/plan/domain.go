package plan

import "github.com/rcfarm/rcfarm/pkg/deploy/record"

// Domain is the cluster's domain as it was read, for a document without a host name.
type Domain struct {
	Name string // empty: the cluster has none
	// Index is the index of its record, zero for none. It must be unchanged when the plan is executed.
	Index uint64
}

const hostPath = "pod.service.meta." + record.HostMeta

// decides reports whether the domain sets this field. d may be nil.
func (d *Domain) decides(f FieldChange) bool { return d != nil && f.Path == hostPath }

func (d *Domain) explain(fields []FieldChange) {
	for i := range fields {
		switch f := &fields[i]; {
		case !d.decides(*f):
		case d.Name == "":
			f.Why = "the cluster has no domain: " + f.Why
		default:
			f.Why = "it follows the cluster's domain: " + f.Why
		}
	}
}

func (d *Domain) is() string {
	if d.Name == "" {
		return "the cluster has no domain"
	}
	return "the cluster's domain is " + d.Name
}
