package manifest

import (
	"fmt"
	"slices"
)

// firstFreePort is the first port that a user other than root may listen on, by the kernel's default
// (net.ipv4.ip_unprivileged_port_start).
const firstFreePort = 1024

// Warnings returns what is valid and will not work on most nodes, in words. Nothing is refused for it: a node may be
// set up for it.
func (m *Manifest) Warnings() []string {
	if slices.ContainsFunc(m.Launchables, func(l Launchable) bool { return l.User == "root" }) {
		return nil
	}
	var warnings []string
	for i, p := range m.Ports {
		if !p.Dynamic && p.Port < firstFreePort {
			warnings = append(warnings, fmt.Sprintf("ports[%d].port: %d is below %d, and no launchable has the user root: most nodes let nobody else listen there", i, p.Port, firstFreePort))
		}
	}
	return warnings
}
