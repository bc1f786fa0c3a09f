package farm

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Whoever depends on a controller is known as long as it does.
func TestKin(t *testing.T) {
	t.Parallel()
	k := &companionIndex{}
	if got := k.usersOf("a"); got != nil {
		t.Errorf("at first: %v", got)
	}
	k.set("a", []string{"b", "c"})
	k.set("b", []string{"a", "c"})
	k.set("a", []string{"b", "c"})
	got := k.usersOf("c")
	if slices.Sort(got); !slices.Equal(got, []string{"a", "b"}) || !slices.Equal(k.usersOf("a"), []string{"b"}) {
		t.Errorf("%v", got)
	}
	k.set("a", []string{"b"})
	if got := k.usersOf("c"); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%v", got)
	}
	at := func(rcID string) store.At { return store.At{Node: "n1", Identity: pod.Identity{RCID: rcID}} }
	k.leaves("a", []store.At{at("a")})
	k.leaves("c", []store.At{at("c")}) // nobody asks for those of one without companions
	if got := k.placesOf([]string{"a", "c", "x"}); !slices.Equal(got, []store.At{at("a")}) {
		t.Errorf("%v", got)
	}
	k.set("a", nil)
	k.set("b", nil)
	if len(k.of)+len(k.usedBy)+len(k.at) > 0 {
		t.Errorf("%+v", k)
	}
}
