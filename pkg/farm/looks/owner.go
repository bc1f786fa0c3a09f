package looks

import (
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Contender is a farm that may own units.
type Contender struct {
	ID       string
	Selector labels.Selector
}

// Matching returns the farms whose selectors match a unit's labels, which it reads only for selectors that are not
// empty. If the unit is gone, any farm matches. An unreadable unit is taken for one without labels.
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
