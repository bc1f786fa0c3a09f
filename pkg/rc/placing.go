package rc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

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

func (s *Spec) validateSpread(errs *field.Errors) {
	const allowed = "the key of a node label in Kubernetes' syntax, such as rack or example.org/rack: an optional DNS prefix and '/', " +
		"then up to 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
	if s.Spread.IsZero() {
		return
	}
	long := s.Spread.Skew != 0 || s.Spread.When != ""
	path := "spread"
	if long {
		path = "spread.label"
	}
	if _, err := labels.ValidatedSelectorFromSet(labels.Set{s.Spread.Label: ""}); err != nil {
		errs.Add(path, s.Spread.Label, allowed)
	}
	if s.Spread.Skew < 0 || s.Spread.Skew > MaxReplicas {
		errs.Add("spread.skew", s.Spread.Skew, fmt.Sprintf("a whole number from 1 to %d; 0 means %d", MaxReplicas, DefaultSkew))
	}
	if s.Spread.When != "" {
		field.CheckOneOf(errs, "spread.when", s.Spread.When, Prefer, Require)
	}
}

// validatePlacing checks what ranks nodes.
func (s *Spec) validatePlacing(errs *field.Errors) {
	if s.Placing != "" {
		field.CheckOneOf(errs, "placing", s.Placing, PlaceSpread, PlacePack)
	}
	if len(s.Affinity) > MaxPreferences {
		errs.Add("affinity", field.Text(fmt.Sprintf("%d preferences", len(s.Affinity))), fmt.Sprintf("at most %d preferences", MaxPreferences))
		return
	}
	for i, p := range s.Affinity {
		path := fmt.Sprintf("affinity[%d]", i)
		checkSelector(errs, path+".selector", p.Selector)
		if p.Selector == "" {
			errs.Missing(path+".selector", selectorAllowed)
		}
		if p.Weight < 1 || p.Weight > MaxWeight {
			errs.Add(path+".weight", p.Weight, fmt.Sprintf("a whole number from 1 to %d", MaxWeight))
		}
	}
}
