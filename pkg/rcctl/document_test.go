package rcctl

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A file of any content is refused with field errors, or converted to JSON. An accepted document makes a record that
// can be read back.
func FuzzDocument(f *testing.F) {
	for _, seed := range []string{
		goodDocument, "a: *b", "a: &a [*a]", "<<: {a: 1}", "a: !!binary x", "? [a]\n: b", "{",
		"\x00", "---\n---\n", "a: 1e999",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		converted, err := document.ToJSON(data, inspect.SpecAllowed)
		var errs field.Errors
		if err != nil {
			if !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("%q: %v", data, err)
			}
			return
		}
		if !json.Valid(converted) {
			t.Fatalf("%q became %q", data, converted)
		}
		spec, err := rc.DecodeSpec(converted)
		if err != nil {
			if !errors.As(err, &errs) {
				t.Fatalf("%q: %v", data, err)
			}
			return
		}
		c, err := computeApply(applyRequest{spec: spec}, current{}, "id")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.rc.Check(); err != nil {
			t.Fatalf("%q makes a record that cannot be read: %v", data, err)
		}
	})
}
