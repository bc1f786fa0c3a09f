package rc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Spread says over the values of which node label pods are spread, and whether that is held (ADR 24). As JSON it is the label alone where nothing
// else is said, as it always was.
type Spread struct {
	Label string `json:"label"`
	Skew  int    `json:"skew,omitempty" feature:"placing"` // zero: DefaultSkew
	When  When   `json:"when,omitempty" feature:"placing"` // empty: Prefer
}

// When says how strict something is.
type When string

// How strict.
const (
	Prefer  When = "prefer"  // the best of what there is
	Require When = "require" // or nothing
)

// DefaultSkew is how many pods a group may have more than the group with the fewest, where a document does not say.
const DefaultSkew = 1

// IsZero reports whether pods are spread over no label.
func (s Spread) IsZero() bool { return s == Spread{} }

// Held returns the skew that no placement may exceed; zero: there is none.
func (s Spread) Held() int {
	switch {
	case s.When != Require:
		return 0
	case s.Skew == 0:
		return DefaultSkew
	default:
		return s.Skew
	}
}

// String is for people.
func (s Spread) String() string {
	if n := s.Held(); n > 0 {
		return fmt.Sprintf("%s, skew %d required", s.Label, n)
	}
	return s.Label
}

// MarshalJSON writes the label alone where nothing else is said: programs before the other fields read that.
func (s Spread) MarshalJSON() ([]byte, error) {
	if s.Skew == 0 && s.When == "" {
		return json.Marshal(s.Label)
	}
	type plain Spread
	return json.Marshal(plain(s))
}

// UnmarshalJSON reads either form.
func (s *Spread) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("{")) {
		var label string
		if err := json.Unmarshal(data, &label); err != nil {
			var value any
			_ = json.Unmarshal(data, &value) // it is JSON
			return &field.Error{Value: field.KindOf(value), Allowed: "the key of a node label, or a map with the fields label, skew, when"}
		}
		*s = Spread{Label: label}
		return nil
	}
	type plain Spread
	var read plain
	err := field.Decode(data, &read)
	var errs field.Errors
	if errors.As(err, &errs) {
		err = errs[0]
	}
	*s = Spread(read)
	return err
}

// Preference is a weighted wish: nodes that the selector matches come before others (ADR 24).
type Preference struct {
	Selector string `json:"selector"`
	Weight   int    `json:"weight"` // 1 to MaxWeight
}

// Placing says which of equally good nodes comes first.
type Placing string

// How pods are placed.
const (
	PlaceSpread Placing = "spread" // on the nodes that have least; the default
	PlacePack   Placing = "pack"   // on those that have most
)

// Limits on preferences.
const (
	MaxPreferences = 16
	MaxWeight      = 100
)

// Wishes are where the pods of a role should be.
type Wishes struct {
	Spread   Spread
	Affinity []Preference
	Placing  Placing // empty: PlaceSpread
	// Alone is the role whose pods alone are counted for Spread, because its group says how they are spread; empty: all of the controller's.
	Alone string
}

// Count reports whether pods of a role are counted for Spread.
func (w *Wishes) Count(role string) bool { return w.Alone == "" || w.Alone == role }

// Wishes reports whether the group says by itself where its pods should be.
func (g *ReplicaGroup) Wishes() bool {
	return !g.Spread.IsZero() || len(g.Affinity) > 0 || g.Placing != ""
}

// HasWishes reports whether the group of a role says by itself where its pods should be.
func (r *RC) HasWishes(role string) bool {
	g := r.group(role)
	return g != nil && g.Wishes()
}

// AnyWishes reports whether some group does.
func (r *RC) AnyWishes() bool {
	return slices.ContainsFunc(r.ReplicaGroups, func(g ReplicaGroup) bool { return g.Wishes() })
}

func (r *RC) group(role string) *ReplicaGroup {
	return field.Find(r.ReplicaGroups, func(g *ReplicaGroup) bool { return g.Role == role })
}

// WishesOf returns where pods of a role should be: as the controller says, and in place of that as its group does. A role without a group
// has the controller's.
func (r *RC) WishesOf(role string) Wishes {
	return WishesFor(Wishes{Spread: r.Spread, Affinity: r.Affinity, Placing: r.Placing}, r.group(role))
}

// WishesFor returns the wishes of all with those of a group in their place; nil: no group.
func WishesFor(all Wishes, g *ReplicaGroup) Wishes {
	w := all
	if g != nil && !g.Spread.IsZero() {
		w.Spread, w.Alone = g.Spread, g.Role
	}
	if g != nil && len(g.Affinity) > 0 {
		w.Affinity = g.Affinity
	}
	if g != nil && g.Placing != "" {
		w.Placing = g.Placing
	}
	if w.Placing == PlaceSpread {
		w.Placing = ""
	}
	return w
}

func validateSpread(errs *field.Errors, path string, spread Spread) {
	const allowed = "the key of a node label in Kubernetes' syntax, such as rack or example.org/rack: an optional DNS prefix and '/', " +
		"then up to 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
	if spread.IsZero() {
		return
	}
	label := path
	if spread.Skew != 0 || spread.When != "" {
		label = path + ".label"
	}
	if _, err := labels.ValidatedSelectorFromSet(labels.Set{spread.Label: ""}); err != nil {
		errs.Add(label, spread.Label, allowed)
	}
	if spread.Skew < 0 || spread.Skew > MaxReplicas {
		errs.Add(path+".skew", spread.Skew, fmt.Sprintf("a whole number from 1 to %d; 0 means %d", MaxReplicas, DefaultSkew))
	}
	if spread.When != "" {
		field.CheckOneOf(errs, path+".when", spread.When, Prefer, Require)
	}
}

// validateRanking checks what ranks nodes, with paths below a prefix.
func validateRanking(errs *field.Errors, prefix string, affinity []Preference, placing Placing) {
	if placing != "" {
		field.CheckOneOf(errs, prefix+"placing", placing, PlaceSpread, PlacePack)
	}
	if len(affinity) > MaxPreferences {
		errs.Add(prefix+"affinity", field.Text(fmt.Sprintf("%d preferences", len(affinity))), fmt.Sprintf("at most %d preferences", MaxPreferences))
		return
	}
	for i, p := range affinity {
		path := fmt.Sprintf("%saffinity[%d]", prefix, i)
		checkSelector(errs, path+".selector", p.Selector)
		if p.Selector == "" {
			errs.Missing(path+".selector", selectorAllowed)
		}
		if p.Weight < 1 || p.Weight > MaxWeight {
			errs.Add(path+".weight", p.Weight, fmt.Sprintf("a whole number from 1 to %d", MaxWeight))
		}
	}
}
