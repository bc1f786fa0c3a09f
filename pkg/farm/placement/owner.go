package placement

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// Preferred returns which of several farms something belongs to, such as a unit or a node; "" if there are no farms. By
// rendezvous hashing, a farm that joins or leaves changes only what it gets or had.
func Preferred(of string, among []string) string {
	if len(among) == 0 {
		return ""
	}
	return slices.MaxFunc(among, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(a, of), score(b, of)), cmp.Compare(a, b))
	})
}

func score(farm, of string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(farm + "\x00" + of)) // writing to a hash cannot fail
	return finish(h.Sum64())
}

// finish spreads the last input bytes over all bits. FNV alone does not, and ids of one batch differ only at their end.
func finish(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
