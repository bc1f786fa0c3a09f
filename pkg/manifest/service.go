package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Limits on a pod's data in Consul's catalog, which every server keeps in memory. The limits of meta are Consul's own:
// https://developer.hashicorp.com/consul/docs/reference/service
const (
	MaxTags = 64
	MaxMeta = 48 // Consul allows 64; the preparer needs the other 16
)

// MaxDrain bounds Service.Drain.
const MaxDrain = 10 * time.Minute

const standbySuffix = "-standby"

// Standby returns the name under which a standby is registered.
func (n NamedService) Standby() string { return n.Name + standbySuffix }

// Names in Consul that are not for pods, because Consul and the daemons use them.
const (
	reservedService = "consul"
	reservedPrefix  = "rcfarm-"
)

// NamedService is one name under which a pod is found in Consul.
type NamedService struct {
	Name string // of the service
	Port string // name of the port; empty: the service has no port
}

// Services returns the pod's names in Consul, the main one first. The main name is for one port: the one that
// service.port names, else of the health check, else the first. Each other port has the name <main>-<port>.
func (m *Manifest) Services() []NamedService {
	main := NamedService{Name: m.ID, Port: m.mainPort()}
	if m.Service != nil && m.Service.Name != "" {
		main.Name = m.Service.Name
	}
	all := []NamedService{main}
	for _, p := range m.Ports {
		if p.Name != main.Port {
			all = append(all, NamedService{Name: main.Name + "-" + p.Name, Port: p.Name})
		}
	}
	return all
}

func (m *Manifest) mainPort() string {
	switch {
	case m.Service != nil && m.Service.Port != "":
		return m.Service.Port
	case m.Health != nil && m.Health.HTTP != nil:
		return m.Health.HTTP.Port
	case m.Health != nil && m.Health.TCP != nil:
		return m.Health.TCP.Port
	case len(m.Ports) > 0:
		return m.Ports[0].Name
	}
	return ""
}

func checkServiceName(errs *field.Errors, path, name string) {
	if name == reservedService || strings.HasPrefix(name, reservedPrefix) {
		errs.Add(path, name, fmt.Sprintf("a name other than %q that does not start with %q: those are taken in Consul",
			reservedService, reservedPrefix))
	}
}

func (s *Service) validate(m *Manifest) field.Errors {
	var errs field.Errors
	if s.Name != "" {
		errs.CheckName("name", s.Name)
		checkServiceName(&errs, "name", s.Name)
	}
	if s.Port != "" {
		m.checkPort(&errs, "port", s.Port)
	}
	if s.Drain != nil && time.Duration(*s.Drain) > MaxDrain {
		errs.Add("drain", time.Duration(*s.Drain).String(),
			fmt.Sprintf("a length of time, at most %q; 0s: none", MaxDrain))
	}
	checkCount(&errs, "tags", len(s.Tags), 0, MaxTags)
	seen := map[string]bool{}
	for i, tag := range s.Tags {
		path := fmt.Sprintf("tags[%d]", i)
		ServiceTag.check(&errs, path, tag)
		checkUnique(&errs, path, tag, seen)
	}
	checkCount(&errs, "meta", len(s.Meta), 0, MaxMeta)
	for _, key := range slices.Sorted(maps.Keys(s.Meta)) {
		if !MetaKey.ok(key) || strings.HasPrefix(key, "consul-") || strings.HasPrefix(key, "rcfarm_") {
			errs.Add("meta."+key, key, MetaKey.allowed)
		}
		MetaValue.check(&errs, "meta."+key, s.Meta[key])
	}
	return errs
}

// checkServiceNames refuses a further port's name that is too long for DNS. The main name never is.
func (m *Manifest) checkServiceNames(errs *field.Errors) {
	for _, s := range m.Services()[1:] {
		if len(s.Name) > field.MaxName {
			errs.Add("service.name", s.Name,
				fmt.Sprintf("at most %d characters together with \"-\" and the name of each further port; give the "+
					"service a shorter name", field.MaxName))
			return
		}
	}
}
