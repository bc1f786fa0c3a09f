package record

import (
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// HostMeta is the key in the meta of a pod's service that names the service to those who route by host.
const HostMeta = "host"

// maxHost is how long a name may be in DNS, in characters.
const maxHost = 253

// MaxDomainBytes bounds the cluster's domain, so that the host name of a service with the longest name is one.
const MaxDomainBytes = maxHost - 1 - MaxNameBytes

// DomainAllowed says in words what CheckDomain accepts.
const DomainAllowed = `a DNS name in lower case such as "apps.example.org": names of 1 to 63 letters, digits and "-" ` +
	`with dots between them, at most 202 characters, the last name not of digits alone`

// CheckDomain records a text that cannot be the domain of host names.
func CheckDomain(errs *field.Errors, path, domain string) {
	if !isDomain(domain) {
		errs.Add(path, domain, DomainAllowed)
	}
}

func isDomain(text string) bool {
	if len(text) > MaxDomainBytes {
		return false
	}
	last := ""
	for last = range strings.SplitSeq(text, ".") {
		if !field.IsName(last) {
			return false
		}
	}
	return strings.Trim(last, "0123456789") != "" // else it may be an address
}

// HostOf returns the host name of a service below a domain; "" where there is no domain.
func HostOf(service, domain string) string {
	if domain == "" {
		return ""
	}
	return service + "." + domain
}

// Host returns the host name that the document has, "" for none.
func (s *ServiceSpec) Host() string {
	if s.Pod == nil || s.Pod.Service == nil {
		return ""
	}
	return s.Pod.Service.Meta[HostMeta]
}
