package inspect

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestJoinFarms(t *testing.T) {
	views, free := JoinFarms([]store.Member{{ID: "b"}, {ID: "a"}}, "a",
		map[string]string{"1": "a", "2": "a", "3": "gone", "9": "b"}, []string{"1", "2", "3", "4"},
		map[string]string{"1": "web", "2": "api", "3": "lost"})
	if free != 1 || len(views) != 2 || views[0].ID != "a" || views[0].Owned != 2 || views[1].Owned != 0 ||
		!views[0].Leads || views[1].Leads {
		t.Errorf("%d free, %+v", free, views)
	}
	if want := []OwnedRC{{ID: "2", Name: "api"}, {ID: "1", Name: "web"}}; !slices.Equal(views[0].OwnedRCs, want) ||
		views[1].OwnedRCs == nil {
		t.Errorf("%+v", views)
	}
}

// The owner of a service owns all of its revisions.
func TestJoinFarmsByUnit(t *testing.T) {
	const unit = "01arz3ndektsv4rrffq69g5fav"
	views, free := JoinFarms([]store.Member{{ID: "a"}}, "",
		map[string]string{unit: "a"}, []string{unit + "-1", unit + "-2", "01bx5zzkbkactav9wevgemmvrz-1"}, nil)
	if free != 1 || len(views) != 1 || views[0].Owned != 2 {
		t.Errorf("%d free, %+v", free, views)
	}
}
