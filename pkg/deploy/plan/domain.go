package plan

import "github.com/rcfarm/rcfarm/pkg/deploy/record"

// Domain is the domain of the cluster, as it was read for a document that names no host: its host name is of the
// domain.
type Domain struct {
	Name  string // empty: the cluster has none
	Index uint64 // of the record that says so; zero: there was none. The plan is carried out only while it is the same
}

// hostPath leads to the host name in a document.
const hostPath = "pod.service.meta." + record.HostMeta

// decides reports whether the domain sets this field. d may be nil.
func (d *Domain) decides(f FieldChange) bool { return d != nil && f.Path == hostPath }

// explain says of the field that the domain decides why it is another one than before.
func (d *Domain) explain(fields []FieldChange) {
	for i := range fields {
		switch f := &fields[i]; {
		case !d.decides(*f):
		case d.Name == "":
			f.Why = "the cluster has no domain: " + f.Why
		default:
			f.Why = "the cluster's domain says so: " + f.Why
		}
	}
}

// is says in words which domain the cluster has.
func (d *Domain) is() string {
	if d.Name == "" {
		return "the cluster has no domain"
	}
	return "the cluster's domain is " + d.Name
}
