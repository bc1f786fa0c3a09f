package inspect

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func maybe[T any](t *rapid.T, name string, g *rapid.Generator[T]) *T {
	if !rapid.Bool().Draw(t, name+" is given") {
		return nil
	}
	v := g.Draw(t, name)
	return &v
}

func anyRecord(t *rapid.T) rc.RC {
	count, length := rapid.IntRange(0, 5), rapid.Map(rapid.IntRange(1, 3), func(n int) field.Duration {
		return field.Duration(time.Duration(n) * 30 * time.Second)
	})
	r := rc.RC{
		ID: "id", Name: "web", ManifestDigest: "d",
		NodeSelector: rapid.SampledFrom([]string{"", "a=b"}).Draw(t, "selector"),
		MaxPerNode:   count.Draw(t, "per node"),
		Spread:       rc.Spread{Label: rapid.SampledFrom([]string{"", "rack"}).Draw(t, "spread")},
		MinAvailable: maybe(t, "minimum", count), MaxSurge: maybe(t, "surge", count),
		ProgressDeadline: maybe(t, "deadline", length),
		NodeLoss: rc.NodeLoss{
			Action: rapid.SampledFrom([]string{"", "replace", "keep"}).Draw(t, "action"),
			After:  maybe(t, "after", length), UnmanagedAfter: maybe(t, "unmanaged after", length),
		},
		Strategy:   rapid.SampledFrom([]rc.Strategy{rc.Dynamic, rc.Static}).Draw(t, "strategy"),
		Disabled:   rapid.Bool().Draw(t, "disabled"),
		Generation: 7, ChangedBy: "somebody",
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "groups") {
		r.ReplicaGroups = append(r.ReplicaGroups,
			rc.ReplicaGroup{Role: []string{"main", "b", "c"}[i], Count: maybe(t, "count", count)})
		if r.ReplicaGroups[i].Count == nil {
			r.ReplicaGroups[i].Count = new(int)
		}
	}
	if rapid.Bool().Draw(t, "another role") {
		r.ReplicaGroups[0].Role = "a"
	}
	return r
}

// aManifest returns a manifest with one field of each kind that may look different in YAML.
func aManifest() *manifest.Manifest {
	grace := field.Duration(5 * time.Second)
	return &manifest.Manifest{
		Version: manifest.Version, ID: "web",
		Launchables: []manifest.Launchable{{
			Name: "server", Artifact: manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/bin/web"},
			Env: map[string]string{"MODE": "fast", "ON": "yes"}, StopGrace: &grace,
		}},
		Ports:  []manifest.Port{{Name: "http", Port: 8080}},
		Health: &manifest.Health{HTTP: &manifest.HTTPCheck{Port: "http", Path: "/health"}},
	}
}

// The output of rc get, in either format, asks for the same as the record.
func TestShownAsksForTheSame(t *testing.T) {
	pod := aManifest()
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord(t)
		view := NewRCView(&r, &rc.Status{}, nil)
		view.Manifest = pod
		shown := NewRCDocument(&r, &view)
		inYAML, err := shown.Text()
		if err != nil {
			t.Fatal(err)
		}
		inJSON, err := Indented(view)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range [][]byte{inYAML, inJSON} {
			converted, err := document.ToJSON(text, SpecAllowed)
			if err != nil {
				t.Fatal(err)
			}
			spec, ignored, err := DecodeShown(converted)
			if err != nil || !slices.Contains(ignored, "status") {
				t.Fatalf("%v, ignored %v\n%s", err, ignored, text)
			}
			after := r
			spec.Apply(&after, r.Digests())
			if diff := cmp.Diff(r, after); diff != "" {
				t.Fatalf("%s\n%s", diff, text)
			}
		}
	})
}

// Apply accepts every field that rc get prints.
func TestShownIsKnown(t *testing.T) {
	known := field.Names[shownRC]()
	for _, name := range append(field.Names[RCView](), field.Names[RCDocument]()...) {
		if !slices.Contains(known, name) {
			t.Errorf("%s is printed and not accepted", name)
		}
	}
}

// The document keeps the numbers of a manifest's configuration exactly, also those that YAML would change.
func TestShownKeepsNumbers(t *testing.T) {
	for _, number := range []string{
		"1", "1.0", "-0", "1e3", "1E+3", "0.1", "1e400", "123456789012345678901234567890",
		"12345678901",
	} {
		m := &manifest.Manifest{ID: "web", Config: manifest.Config{"n": json.Number(number)}}
		r := rc.RC{Name: "web", ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: new(int)}}}
		text, err := (&RCDocument{Spec: *rc.SpecOf(&r, m)}).Text()
		if err != nil {
			t.Fatal(err)
		}
		converted, err := document.ToJSON(text, SpecAllowed)
		if err != nil {
			t.Fatal(err)
		}
		var back rc.Spec
		if err := json.Unmarshal(converted, &back); err != nil || fmt.Sprint(back.Pod.Config["n"]) != number {
			t.Errorf("%s became %v, %v\n%s", number, back.Pod.Config["n"], err, text)
		}
	}
}
