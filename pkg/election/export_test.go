package election

import "context"

// FenceOf returns the index of the lock under which a leader writes.
func FenceOf(leaderCtx context.Context) uint64 {
	return leaderCtx.Value(tenureKey{}).(*tenure).present().Index
}
