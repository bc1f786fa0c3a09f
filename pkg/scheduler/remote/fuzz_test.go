package remote

import (
	"encoding/json"
	"testing"
)

// parseAnswer refuses an answer with an error, or the answer keeps all bounds, and does not change when it is encoded
// and parsed again.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		`{"version":1}`, `{"version":1,"nodes":["n1","n2"],"refused":{"full":3}}`,
		`{"version":2}`, `{"version":1,"nodes":[""]}`, `{`,
		`{"version":1,"allocations":[{"pod":{"rc_id":"r","role":"main","index":0},"node":"n1"}]}`,
		`{"version":1,"refused":{"a\nb":-1}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseAnswer(data)
		if err != nil {
			if len(a.Nodes)+len(a.Allocations)+len(a.Refused) != 0 {
				t.Fatalf("refused with %v, and used: %+v", err, a)
			}
			return
		}
		for _, name := range a.Nodes {
			if name == "" || len(name) > maxName {
				t.Fatalf("it names %q", name)
			}
		}
		again, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := parseAnswer(again); err != nil || len(b.Nodes) != len(a.Nodes) ||
			len(b.Allocations) != len(a.Allocations) || len(b.Refused) != len(a.Refused) {
			t.Fatalf("%+v is read again as %+v, %v", a, b, err)
		}
	})
}
