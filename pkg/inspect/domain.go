package inspect

import (
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// DomainView is the cluster's domain, and which host names services have.
type DomainView struct {
	Domain   string     `json:"domain"` // empty: there is none
	By       string     `json:"by,omitempty"`
	At       time.Time  `json:"at,omitzero"`
	Services []HostView `json:"services"`
}

// HostView is the host name of a service, as its document in effect has it.
type HostView struct {
	Service string `json:"service"`
	Host    string `json:"host"` // empty: it has none
	// Next is the one that the next deploy gives it, where that is another one and the service's document names none;
	// empty: none. A host name that does not begin with the name of the service is the document's own.
	Next *string `json:"next,omitempty"`
}

// NewDomainView says which host names services have, and are going to have.
func NewDomainView(s store.Settings, deployed []record.Deployed) DomainView {
	v := DomainView{Domain: s.Domain, By: s.By, At: s.At}
	v.Services = field.Each(deployed, func(d record.Deployed) HostView {
		h := HostView{Service: d.Service, Host: d.Spec.Host()}
		next := record.HostOf(d.Service, s.Domain)
		if own := h.Host != "" && !strings.HasPrefix(h.Host, d.Service+"."); !own && h.Host != next {
			h.Next = &next
		}
		return h
	})
	if v.Services == nil {
		v.Services = []HostView{}
	}
	return v
}
