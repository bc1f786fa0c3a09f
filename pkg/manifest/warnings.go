package manifest

import (
	"fmt"
	"slices"
)

// firstFreePort is the kernel's default of net.ipv4.ip_unprivileged_port_start.
const firstFreePort = 1024

// Warnings describes what does not work on most nodes, although Validate accepts it for nodes that allow it, and what
// people may not expect.
func (m *Manifest) Warnings() []string { return append(m.lowPorts(), m.ignoredChecks()...) }

func (m *Manifest) lowPorts() []string {
	if slices.ContainsFunc(m.Launchables, func(l Launchable) bool { return l.User == "root" }) {
		return nil
	}
	var warnings []string
	for i, p := range m.Ports {
		if !p.Dynamic && p.Port < firstFreePort {
			warnings = append(warnings,
				fmt.Sprintf("ports[%d].port: %d is below %d, and no launchable has the user root: most nodes let "+
					"nobody else listen there", i, p.Port, firstFreePort))
		}
	}
	return warnings
}

func (m *Manifest) ignoredChecks() []string {
	if !m.HasImage() || m.Health != nil {
		return nil
	}
	return []string{"health: missing, and a HEALTHCHECK of an image is ignored: only health checks that the pod works"}
}
