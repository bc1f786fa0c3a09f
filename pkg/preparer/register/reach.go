package register

import (
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// Reach is what a preparer may touch of the agent's services. Each one includes those before it.
type Reach int

// What may be touched. Services have ids made of the node's name, so that another preparer with that name has the same
// ones.
const (
	Nothing Reach = iota // the node's name may be another preparer's
	Running              // services of pods that run here are registered, and withdrawn when these stop
	Known                // services of known pods that do not run are deregistered
	All                  // so are those of no pod that this preparer knows
)

// straysOf returns the services that are to be deregistered. expected has an entry for each service of a known pod:
// whether it may be there.
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
