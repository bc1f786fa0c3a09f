package scheduler

import (
	"hash/fnv"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/node"
)

// ClaimOn returns what an identity takes of a node: the claim that it wants, and a number from the node's range for each of
// the dynamic ports, by name. A reason says that the node cannot give it. As in Fits what the identity holds already does
// not count against it; only it does not get such a number again, since the version that holds it may still run.
//
// keep has the numbers that ports of these names had here before: a port keeps its number if that is in the range still.
func ClaimOn(v *node.View, res node.Reservation, want node.Claim, dynamic []string, keep map[string]int) (node.Claim, map[string]int, Reason) {
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
	dynamic = slices.Sorted(slices.Values(dynamic)) // whoever asks twice is told the same
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

// sizeOf returns how many numbers a range has.
func sizeOf(r node.PortRange) int {
	if r.Min < 1 {
		return 0
	}
	return max(0, r.Max-r.Min+1)
}

func inRange(r node.PortRange, port int) bool { return port > 0 && port >= r.Min && port <= r.Max }

// freePorts returns a function that gives one free port after the other, zero when there are no more. Each identity begins
// somewhere else, so that a number that has just become free is not the first to be given away: connections to it may
// linger.
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
