//go:build nofence

package consul

import "github.com/hashicorp/consul/api"

// Ops returns two operations that demand nothing, in the place of the fence. Builds with this tag exist to show that the
// checker of integration/chaos finds what the fence prevents; see docs/testing.md.
func (f Fence) Ops() []Op {
	nothing := op(api.KVGetOrEmpty, f.Key, nil, 0, "")
	return []Op{nothing, nothing}
}
