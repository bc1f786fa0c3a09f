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

// Spread is the node label over whose values pods are spread (ADR 24).
type Spread struct {
	Label string `json:"label"`
	Skew  int    `json:"skew,omitempty" feature:"placing"` // zero: DefaultSkew
	When  When   `json:"when,omitempty" feature:"placing"` // empty: Prefer
}

// When is how strict something is.
type When string

// The values of When.
const (
	Prefer  When = "prefer"  // as far as possible
	Require When = "require" // no placement without it
)

// DefaultSkew is how many more pods one value of the label may have than the value with the fewest.
const DefaultSkew = 1

// IsZero reports whether there is no spread.
func (s Spread) IsZero() bool { return s == Spread{} }

// Held returns the skew that no placement may exceed; zero: none.
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

// MarshalJSON writes a lone label as text, because earlier versions read only that.
func (s Spread) MarshalJSON() ([]byte, error) {
	if s.Skew == 0 && s.When == "" {
		return json.Marshal(s.Label)
	}
	type plain Spread
	return json.Marshal(plain(s))
}

// UnmarshalJSON reads a label or a map.
func (s *Spread) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("{")) {
		var label string
		if err := json.Unmarshal(data, &label); err != nil {
			var value any
			_ = json.Unmarshal(data, &value) // cannot fail: it is JSON
			return &field.Error{
				Value:   field.KindOf(value),
				Allowed: "the key of a node label, or a map with the fields label, skew, when",
			}
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

// Preference is a weighted preference for the nodes that the selector matches (ADR 24).
type Preference struct {
	Selector string `json:"selector"`
	Weight   int    `json:"weight"` // 1 to MaxWeight
}

// Placing orders equally good nodes.
type Placing string

// The values of Placing.
const (
	PlaceSpread Placing = "spread" // the nodes with the least used; the default
	PlacePack   Placing = "pack"   // the nodes with the most used
)

// Limits on preferences.
const (
	MaxPreferences = 16
	MaxWeight      = 100
)

// Preferences are the preferences for a role.
type Preferences struct {
	Spread   Spread
	Affinity []Preference
	Placing  Placing // empty: PlaceSpread
	// Alone is the only role that is counted for Spread, because its group has its own spread; empty: all roles.
	Alone string
}

// Count reports whether a role is counted for Spread.
func (w *Preferences) Count(role string) bool { return w.Alone == "" || w.Alone == role }

// HasPreferences reports whether the group has its own placement preferences.
func (r *ReplicaGroup) HasPreferences() bool {
	return !r.Spread.IsZero() || len(r.Affinity) > 0 || r.Placing != ""
}

// HasPreferences reports whether the role's group has its own preferences.
func (r *RC) HasPreferences(role string) bool {
	g := r.group(role)
	return g != nil && g.HasPreferences()
}

// AnyPreferences reports whether any group has its own preferences.
func (r *RC) AnyPreferences() bool {
	return slices.ContainsFunc(r.ReplicaGroups, func(g ReplicaGroup) bool { return g.HasPreferences() })
}

func (r *RC) group(role string) *ReplicaGroup {
	return field.Find(r.ReplicaGroups, func(g *ReplicaGroup) bool { return g.Role == role })
}

// PreferencesOf returns the preferences for a role: each one that its group has replaces the controller's.
func (r *RC) PreferencesOf(role string) Preferences {
	return PreferencesFor(Preferences{Spread: r.Spread, Affinity: r.Affinity, Placing: r.Placing}, r.group(role))
}

// PreferencesFor replaces preferences in all with the group's own. g may be nil.
func PreferencesFor(all Preferences, g *ReplicaGroup) Preferences {
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
	const allowed = "the key of a node label in Kubernetes' syntax, such as rack or example.org/rack: an optional " +
		"DNS prefix and '/', " +
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
		errs.Add(path+".skew", spread.Skew,
			fmt.Sprintf("a whole number from 1 to %d; 0 means %d", MaxReplicas, DefaultSkew))
	}
	if spread.When != "" {
		field.CheckOneOf(errs, path+".when", spread.When, Prefer, Require)
	}
}

func validateRanking(errs *field.Errors, prefix string, affinity []Preference, placing Placing) {
	if placing != "" {
		field.CheckOneOf(errs, prefix+"placing", placing, PlaceSpread, PlacePack)
	}
	if len(affinity) > MaxPreferences {
		errs.Add(prefix+"affinity", field.Text(fmt.Sprintf("%d preferences", len(affinity))),
			fmt.Sprintf("at most %d preferences", MaxPreferences))
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
