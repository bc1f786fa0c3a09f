package manifest_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func withResources(text string) []byte {
	return fmt.Appendf(nil,
		`{"version": 1, "id": "web", "launchables": [{"name": "web", "artifact": {"kind": "exec", "path": "/bin/true"}, "resources": %s}]}`, text)
}

// A Kubernetes quantity as text, and a number in the field's unit, give the same manifest.
func TestQuantities(t *testing.T) {
	for _, test := range []struct{ text, number string }{
		{`{"cpu": "500m"}`, `{"cpu": 500}`},
		{`{"cpu": "2"}`, `{"cpu": 2000}`},
		{`{"cpu": "1.25"}`, `{"cpu": 1250}`},
		{`{"cpu": "0.5", "memory": "1e3"}`, `{"cpu": 500, "memory": 1000}`},
		{`{"memory": "256Mi"}`, `{"memory": 268435456}`},
		{`{"memory": "1G"}`, `{"memory": 1000000000}`},
		{`{"memory": "0.5Ki"}`, `{"memory": 512}`},
		{`{"cpu": "0", "memory": "0"}`, `{}`},
	} {
		read, err := manifest.Decode(withResources(test.text))
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		want, err := manifest.Decode(withResources(test.number))
		if err != nil {
			t.Fatal(err)
		}
		a, errA := read.Canonical()
		b, errB := want.Canonical()
		if errA != nil || errB != nil || manifest.Digest(a) != manifest.Digest(b) {
			t.Errorf("%s is %s, %s is %s (%v, %v)", test.text, a, test.number, b, errA, errB)
		}
		var doc any
		if err := json.Unmarshal(withResources(test.text), &doc); err != nil {
			t.Fatal(err)
		}
		if err := compile(t).Validate(doc); err != nil {
			t.Errorf("the schema refuses %s: %v", test.text, err)
		}
	}
}

// A value that is no quantity, or no whole number of the unit, is refused with field, value and what is allowed.
func TestQuantitiesRefused(t *testing.T) {
	for resources, want := range map[string]string{
		`{"cpu": "0.0001"}`:  `launchables[0].resources.cpu: "0.0001" is not valid; allowed: thousandths of a core as a whole number, or cores as text, such as "500m" or "1.5"`,
		`{"cpu": 0.5}`:       `launchables[0].resources.cpu: 0.5 is not valid; allowed: thousandths of a core`,
		`{"cpu": "half"}`:    `launchables[0].resources.cpu: "half"`,
		`{"cpu": true}`:      `launchables[0].resources.cpu: true`,
		`{"cpu": null}`:      `launchables[0].resources.cpu: null`,
		`{"cpu": "-1"}`:      `launchables[0].resources.cpu: -1000 is not valid; allowed: thousandths of a core, from 0 to 1000000`,
		`{"memory": "1m"}`:   `launchables[0].resources.memory: "1m" is not valid; allowed: bytes as a whole number, or as text with a unit, such as "256Mi" or "1G"`,
		`{"memory": "1MiB"}`: `launchables[0].resources.memory: "1MiB"`,
		`{"memory": "20E"}`:  `launchables[0].resources.memory: "20E"`,
		`{"memory": ""}`:     `launchables[0].resources.memory: ""`,
	} {
		if _, err := manifest.Decode(withResources(resources)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", resources, err, want)
		}
	}
}
