package remote

import (
	"encoding/json"
	"testing"
)

// Whatever somebody answers is refused with an error or has no more than answers may have, and says the same when it is read again.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		`{"version":1}`, `{"version":1,"nodes":["n1","n2"],"refused":{"full":3}}`, `{"version":2}`, `{"version":1,"nodes":[""]}`, `{`,
		`{"version":1,"allocations":[{"pod":{"rc_id":"r","role":"main","index":0},"node":"n1"}]}`, `{"version":1,"refused":{"a\nb":-1}}`,
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
		if b, err := parseAnswer(again); err != nil || len(b.Nodes) != len(a.Nodes) || len(b.Allocations) != len(a.Allocations) || len(b.Refused) != len(a.Refused) {
			t.Fatalf("%+v is read again as %+v, %v", a, b, err)
		}
	})
}
