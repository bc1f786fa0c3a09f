package looks

import (
	"errors"
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

// Matching returns those of some farms whose selectors match the labels of a unit, which are read only where a selector
// asks for labels. A unit that is gone is anybody's; one that cannot be read has no labels: farms without a selector
// may own it.
func Matching(farms []Contender, labelsOf func() (store.Rec[rc.RC], error)) (ids []string, err error) {
	gone := false
	set := sync.OnceValues(func() (labels.Set, error) {
		rec, err := labelsOf()
		gone = errors.Is(err, store.ErrNotFound)
		if gone || store.IsCorrupt(err) {
			return nil, nil
		}
		return rec.Value.Labels, err
	})
	for _, farm := range farms {
		if !farm.Selector.Empty() {
			of, err := set()
			if err != nil {
				return nil, err
			}
			if !gone && !farm.Selector.Matches(of) {
				continue
			}
		}
		ids = append(ids, farm.ID)
	}
	return ids, nil
}
