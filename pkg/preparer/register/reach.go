package register

import (
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// Reach is which services of the agent a preparer may change. Each value includes the values before it.
type Reach int

// Another preparer with the same node name has the same service ids.
const (
	Nothing Reach = iota // change no service, because another preparer may have the node's name
	Running              // register services of running pods, and deregister them when the pods stop
	Known                // deregister services of known pods that do not run
	All                  // deregister services of pods that this preparer does not know
)

// straysOf returns the services to deregister. expected has each service of a known pod, and whether it may exist.
func straysOf(local map[string]consul.Health, expected map[string]bool, reach Reach) (strays []string) {
	for id := range local {
		may, known := expected[id]
		needs := All
		if known {
			needs = Known
		}
		if !may && reach >= needs && strings.HasPrefix(id, servicePrefix) {
			strays = append(strays, id)
		}
	}
	return strays
}
