package rcctl

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func TestSplit(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"a: 1", []string{"a: 1"}},
		{"---\na: 1\n", []string{"\na: 1\n"}},
		{"# c\n---\na: 1\n---\n# nothing\n", []string{"\n\na: 1\n"}},
		{"a: 1\n---\nb: 2\n", []string{"a: 1\n", "\n\nb: 2\n"}},
		{"a: 1\n...\nb: 2\n", []string{"a: 1\n", "\n\nb: 2\n"}},
		{"--- {a: 1}\n", []string{" {a: 1}\n"}},
		{"%YAML 1.1\n---\na: 1", []string{"\n\na: 1"}},
		{"---a: 1", []string{"---a: 1"}},
		{"a: |\n  ---\n  x\n", []string{"a: |\n  ---\n  x\n"}},
		{"a: 1\r\n---\r\nb: 2", []string{"a: 1\r\n", "\n\r\nb: 2"}},
		{"\ufeffa: 1", []string{"\ufeffa: 1"}},
	} {
		var got []string
		for _, d := range split([]byte(tt.in)) {
			got = append(got, string(d))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q: %s", tt.in, diff)
		}
	}
}

// Whatever the file holds, it is refused with field errors or read as JSON; and a document that is accepted makes a
// record that can be read back.
func FuzzDocument(f *testing.F) {
	for _, seed := range []string{goodDocument, "a: *b", "a: &a [*a]", "<<: {a: 1}", "a: !!binary x", "? [a]\n: b", "{", "\x00", "---\n---\n", "a: 1e999"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		converted, err := toJSON(data)
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
		c, err := computeApply(spec, current{}, "id", false)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.rc.Check(); err != nil {
			t.Fatalf("%q makes a record that cannot be read: %v", data, err)
		}
	})
}
