package scheduler

import (
	"hash/fnv"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// ClaimOn returns what an identity takes of a node: the wanted claim, and a number for each dynamic port, or a reason.
// Its present claim is not counted as taken, as in Fits. But its present numbers are not given to other ports, because
// the old version may still listen there. A port in keep keeps its number on this node, if that is in the range and
// free.
func ClaimOn(v *node.View, res node.Reservation, want node.Claim, dynamic []string,
	keep map[string]int,
) (node.Claim, map[string]int, Reason) {
	taken, reason := takenBesides(v, res, want.Pod, want)
	if reason != "" || len(dynamic) == 0 {
		return want, nil, reason
	}
	if taken == nil {
		taken = map[int]bool{}
	}
	for _, port := range want.Ports {
		taken[port] = true
	}
	dynamic = slices.Sorted(slices.Values(dynamic)) // the same arguments must give the same numbers
	ports := make(map[string]int, len(dynamic))
	give := func(name string, port int) {
		ports[name], taken[port] = port, true
		want.Ports = append(slices.Clone(want.Ports), port)
	}
	for _, name := range dynamic {
		if port := keep[name]; inRange(v.PortRange, port) && !taken[port] {
			give(name, port)
		}
	}
	for _, port := range res.Claims[want.Pod.String()].Ports {
		taken[port] = true
	}
	next := freePorts(v.PortRange, want, taken)
	for _, name := range dynamic {
		if ports[name] != 0 {
			continue
		}
		port := next()
		if port == 0 {
			return want, nil, Ports
		}
		give(name, port)
	}
	slices.Sort(want.Ports)
	return want, ports, ""
}

func sizeOf(r node.PortRange) int {
	if r.Min < 1 {
		return 0
	}
	return max(0, r.Max-r.Min+1)
}

func inRange(r node.PortRange, port int) bool { return port > 0 && port >= r.Min && port <= r.Max }

// freePorts returns a function that returns the next free port, zero if none is left. The search starts at a number
// that depends on the identity. The lowest number would often be a port that has just become free, which may still have
// old connections.
func freePorts(r node.PortRange, want node.Claim, taken map[int]bool) func() int {
	size := sizeOf(r)
	if size == 0 {
		return func() int { return 0 }
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(want.Pod.String())) // writing to a hash cannot fail
	at, tried := int(h.Sum32())%size, 0
	return func() int {
		for tried < size {
			port := r.Min + at
			at = (at + 1) % size
			tried++
			if !taken[port] {
				return port
			}
		}
		return 0
	}
}
