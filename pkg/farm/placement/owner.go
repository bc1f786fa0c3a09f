package placement

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// PreferredOwner chooses, among living farms, the one that should own a controller: rendezvous hashing, so that a farm that
// joins or leaves moves only its own share. It returns "" when there is no farm.
func PreferredOwner(rcID string, farms []string) string {
	if len(farms) == 0 {
		return ""
	}
	return slices.MaxFunc(farms, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(a, rcID), score(b, rcID)), cmp.Compare(a, b))
	})
}

func score(farm, rcID string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(farm + "\x00" + rcID)) // writing to a hash cannot fail
	return finish(h.Sum64())
}

// finish spreads the last input bytes over all bits, which FNV alone does not: ids of one batch differ at their end only.
func finish(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
