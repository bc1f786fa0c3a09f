package election

import "context"

// FenceOf returns the index of a leader's fence.
func FenceOf(leaderCtx context.Context) uint64 {
	return leaderCtx.Value(tenureKey{}).(*tenure).present().Index
}
