package inspect

import (
	"cmp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// FarmView is one living farm.
type FarmView struct {
	store.Member
	Hearing
	Leads bool `json:"leads"` // it does the work that belongs to no controller (ADR 27)
	Owned int  `json:"owned"` // controllers
	// nodes to which it could not push (ADR 26)
	Untold *store.Untold `json:"untold,omitempty"`
	// sorted by name
	OwnedRCs []OwnedRC `json:"owned_rcs"`
}

// OwnedRC is a controller that a farm owns.
type OwnedRC struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"` // empty if its record cannot be read
}

// JoinFarms returns the views of farms. free is the number of controllers that no farm owns. names has the names of
// controllers, by id.
func JoinFarms(members []store.Member, leader string, owners map[string]string, rcIDs []string,
	names map[string]string,
) (views []FarmView, free int) {
	owned := map[string][]OwnedRC{}
	for _, id := range rcIDs {
		farm, has := owners[rc.UnitOf(id)]
		if !has {
			free++
			continue
		}
		owned[farm] = append(owned[farm], OwnedRC{ID: id, Name: names[id]})
	}
	views = make([]FarmView, 0, len(members))
	for _, m := range members {
		v := FarmView{
			Member: m, Leads: m.ID == leader, Owned: len(owned[m.ID]), OwnedRCs: append([]OwnedRC{}, owned[m.ID]...),
		}
		slices.SortFunc(v.OwnedRCs, func(a, b OwnedRC) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
		})
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b FarmView) int { return cmp.Compare(a.ID, b.ID) })
	return views, free
}
