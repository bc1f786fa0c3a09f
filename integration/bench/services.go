package main

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// newService makes a service with a revision for each number of replicas, and no rollout. A fifth of the pods may be
// unavailable, or more if the minimum would exceed the largest minimum of a record.
func newService(unit, name string, replicas ...int) ([]made, error) {
	total := 0
	for _, n := range replicas {
		total += n
	}
	all := make([]made, len(replicas))
	for i, n := range replicas {
		r, canonical, err := revision(unit, name, int64(i+1), n)
		if err != nil {
			return nil, err
		}
		r.Service.Min, r.Service.Max = min(total-total/5, rc.MaxReplicas), total
		all[i] = made{r, canonical}
	}
	return all, nil
}

func newServices(name string, n int, replicas ...int) (all []made, err error) {
	for i := range n {
		revisions, err := newService(store.NewID(), fmt.Sprintf("%s-%05d", name, i), replicas...)
		if err != nil {
			return nil, err
		}
		all = append(all, revisions...)
	}
	return all, nil
}

func unitsOf(rcs []rc.RC) []string {
	return rc.UnitsOf(field.Each(rcs, func(r rc.RC) string { return r.ID }))
}
