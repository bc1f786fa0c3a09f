package record

import (
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// HostMeta is the key with the host name in the meta of a pod's service, for routers.
const HostMeta = "host"

const maxHost = 253

// MaxDomainBytes leaves place for the longest name of a service in a host name.
const MaxDomainBytes = maxHost - 1 - MaxNameBytes

// DomainAllowed describes what CheckDomain accepts.
const DomainAllowed = `a DNS name in lower case such as "apps.example.org": names of 1 to 63 letters, digits and "-" ` +
	`with dots between them, at most 202 characters, the last name not of digits alone`

// CheckDomain adds an error if domain cannot be the domain of host names.
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
	return strings.Trim(last, "0123456789") != "" // a name that ends with a number may be an IP address
}

// HostOf returns the host name of a service below a domain, "" without a domain.
func HostOf(service, domain string) string {
	if domain == "" {
		return ""
	}
	return service + "." + domain
}

// Host returns the host name in the document, "" if it has none.
func (s *ServiceSpec) Host() string {
	if s.Pod == nil || s.Pod.Service == nil {
		return ""
	}
	return s.Pod.Service.Meta[HostMeta]
}
