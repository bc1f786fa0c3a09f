package looks

import (
	"context"
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Contender is a farm that may own what its selector matches.
type Contender struct {
	ID       string
	Selector labels.Selector
}

// RCs reads the records of controllers.
type RCs interface {
	RC(ctx context.Context, rcID string, consistent bool) (store.Rec[rc.RC], error)
}

// Matching returns those of some farms whose selectors match all of some controllers, whose records are read only where a selector asks
// for labels. Those that are gone are anybody's; one that cannot be read has no labels: farms without a selector may own it.
func Matching(ctx context.Context, records RCs, farms []Contender, rcIDs ...string) (ids []string, err error) {
	sets := sync.OnceValues(func() (sets []labels.Set, err error) {
		for _, id := range rcIDs {
			rec, err := records.RC(ctx, id, false)
			switch {
			case errors.Is(err, store.ErrNotFound):
			case store.IsCorrupt(err):
				sets = append(sets, nil)
			case err != nil:
				return nil, err
			default:
				sets = append(sets, rec.Value.Labels)
			}
		}
		return sets, nil
	})
	for _, farm := range farms {
		if !farm.Selector.Empty() {
			all, err := sets()
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(all, func(set labels.Set) bool { return !farm.Selector.Matches(set) }) {
				continue
			}
		}
		ids = append(ids, farm.ID)
	}
	return ids, nil
}
