package farm

import (
	"slices"
	"testing"
)

// Whoever depends on a controller is known as long as it does.
func TestKin(t *testing.T) {
	t.Parallel()
	k := &kin{}
	if got := k.besides("a"); got != nil {
		t.Errorf("at first: %v", got)
	}
	k.set("a", []string{"b", "c"})
	k.set("b", []string{"a", "c"})
	k.set("a", []string{"b", "c"})
	got := k.besides("c")
	if slices.Sort(got); !slices.Equal(got, []string{"a", "b"}) || !slices.Equal(k.besides("a"), []string{"b"}) {
		t.Errorf("%v", got)
	}
	k.set("a", []string{"b"})
	if got := k.besides("c"); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%v", got)
	}
	k.set("a", nil)
	k.set("b", nil)
	if len(k.of)+len(k.beside) > 0 {
		t.Errorf("%+v", k)
	}
}
