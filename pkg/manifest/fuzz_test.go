package manifest_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Decode refuses a text with a reason, or its canonical form is valid, stays the same when decoded and encoded again,
// and conforms to the schema.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		least, full, all, allTCP, allScript, allService, allReady, allHung, allDrain, allImage,
	} {
		f.Add([]byte(seed))
	}
	schema := compile(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := manifest.Decode(data)
		if err != nil {
			var errs field.Errors
			if errors.As(err, &errs) && len(errs) == 0 || err.Error() == "" {
				t.Fatalf("%q is refused without a reason", data)
			}
			return
		}
		canonical, err := m.Canonical()
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		again, err := manifest.Decode(canonical)
		if err != nil {
			t.Fatalf("%q is valid, its canonical form %s is not: %v", data, canonical, err)
		}
		second, err := again.Canonical()
		if err != nil || !bytes.Equal(canonical, second) {
			t.Fatalf("%s became %s, %v", canonical, second, err)
		}
		if err := conforms(t, schema, canonical); err != nil {
			t.Fatalf("%s is valid and does not conform to the schema: %v", canonical, err)
		}
	})
}
