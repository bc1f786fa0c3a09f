package field_test

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/field"
)

type inner struct {
	N    int    `json:"n"`
	Note string `json:"note,omitempty"`
}

type Base struct {
	Kind *inner `json:"kind,omitempty"`
}

type outer struct {
	Base

	Name  string  `json:"name"`
	Parts []inner `json:"parts,omitempty"`
	Count int     `json:"count,omitempty"`
}

// Fields that a struct does not have are ignored. The struct's own fields must occur at most once, and must be valid.
func TestDecodeKnown(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"name":"a","parts":[{"n":1,"N":9,"z":null,"z":2}],"Name":["b"],"kind":{"n":2}}`: "",
		`{"name":"a","parts":null,"kind":null}`:                                           "",
		`{"name":"a","parts":[{"n":1,"note":null}]}`:                                      "",
		`{"name":"a","name":"b"}`: "name: a second time is " +
			"not valid",
		`{"name":"a","kind":{"n":1,"n":1}}`: "kind.n: a second time is " +
			"not valid",
		`{"name":"a","parts":[{"n":1},{"n":2,"n":3}]}`: "parts[1].n: a second " +
			"time is not valid",
		`{"name":null}`:                   "name: null is not valid",
		`{"name":"a","count":null}`:       "count: null is not valid",
		`{"name":"a","parts":[{"n":""}]}`: `parts[0].n: "" is not valid`,
		`{"name":"a","parts":{}}`:         "parts: a map is not valid",
		`[]`:                              "a map with the fields",
		`{"name":"a"`:                     "unexpected EOF",
		`{"name":"a"} 1`:                  "something follows",
	} {
		var o outer
		err := field.DecodeKnown([]byte(text), &o)
		if want == "" &&
			(err != nil || o.Name != "a" || len(o.Parts) > 0 && o.Parts[0].N != 1 || o.Kind != nil && o.Kind.N != 2) {
			t.Errorf("%s: %+v, %v", text, o, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
