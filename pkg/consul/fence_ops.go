//go:build !nofence

package consul

// Ops returns the two operations that make Consul refuse the transaction of a paused, deposed or twice-elected owner.
func (f Fence) Ops() []Op {
	return []Op{CheckSession(f.Key, f.Session), CheckIndex(f.Key, f.Index)}
}
