package manifest_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/docs"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func compile(t testing.TB) *jsonschema.Schema {
	t.Helper()
	const id = "urn:rcfarm:manifest:v1"
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(docs.ManifestSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(id, doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile(id)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func conforms(t testing.TB, schema *jsonschema.Schema, text []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(doc)
}

// unseen has mistakes that a schema cannot see, because they are about numbers of bytes, lengths of time, or several
// fields together.
var unseen = []string{
	"user that means none", "short backoff", "long backoff", "backoff upside down", "backoff above the default",
	"backoff below the default", "relative hook of a program", "absolute hook of an archive", "hook of nobody",
	"hook without time", "hook that takes for ever", "stop at once", "volume twice", "key twice in config", "too deep",
	"much too deep", "too large", "ready late", "ready twice", "no registry", "group that means none",
	"the kernel's files", "the configuration", "in memory at a volume", "in memory below a volume", "in memory twice",
	"less than a page", "a capability twice", "a check in an image", "a hook in an image",
	"a volume in a volume",
}

// The schema refuses all mistakes that it can see, and accepts all valid manifests of these tests.
func TestSchemaAgrees(t *testing.T) {
	schema := compile(t)
	eachMistake(t, func(t *testing.T, m mistake, text []byte) {
		refused := conforms(t, schema, text) != nil
		if want := m.want != "" && !slices.Contains(unseen, m.name); refused != want {
			t.Errorf("the schema refuses it: %v; validation says: %s", refused, m.want)
		}
	})
	for _, text := range []string{
		least, full, all, allTCP, allScript, allService, allReady, allHung, allDrain, allImage,
	} {
		if err := conforms(t, schema, []byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Fields that may be left out may be empty or null.
func TestSchemaAcceptsNothing(t *testing.T) {
	schema := compile(t)
	for _, nothing := range []string{
		`"health":null`, `"hooks":null`, `"disconnect":{"stop_after":null}`, `"ports":[]`, `"config":{}`, `"labels":{}`,
		`"hooks":{"before_stop":null}`, `"health":{"http":null,"script":{"path":"a","launchable":""}}`,
	} {
		text := []byte(strings.Replace(least, `"version":1,`, `"version":1,`+nothing+`,`, 1))
		if _, err := manifest.Decode(text); err != nil {
			t.Errorf("validation refuses %s: %v", nothing, err)
		}
		if err := conforms(t, schema, text); err != nil {
			t.Errorf("the schema refuses %s: %v", nothing, err)
		}
	}
	for _, nothing := range []string{
		`"command":""`, `"user":""`, `"work_dir":""`, `"stop_signal":""`,
		`"restart":{"policy":""}`, `"stop_grace":null`,
	} {
		text := []byte(strings.Replace(least, `"name":"server",`, `"name":"server",`+nothing+`,`, 1))
		if _, err := manifest.Decode(text); err != nil {
			t.Errorf("validation refuses %s: %v", nothing, err)
		}
		if err := conforms(t, schema, text); err != nil {
			t.Errorf("the schema refuses %s: %v", nothing, err)
		}
	}
}

// The schema accepts each text that validation accepts.
func TestSchemaAcceptsWhatIsValid(t *testing.T) {
	schema := compile(t)
	text := rapid.OneOf(rapid.StringMatching(`[a-z0-9/.$:?#@% -]{0,12}`), rapid.StringN(0, 8, 40))
	fields := []func(*manifest.Manifest, string){
		func(m *manifest.Manifest, s string) { m.ID = s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Name = s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Command = s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Args = []string{s} },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Env = map[string]string{s: s} },
		func(m *manifest.Manifest, s string) { m.Launchables[0].User = s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].WorkDir = s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Artifact.URL = s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Artifact.URL = "https://" + s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Artifact.URL = "FILE:" + s },
		func(m *manifest.Manifest, s string) { m.Launchables[1].Artifact.Path = s },
		func(m *manifest.Manifest, s string) { m.Launchables[1].Artifact.Path = "/" + s },
		func(m *manifest.Manifest, s string) { m.Health.HTTP.Path = "/" + s },
		func(m *manifest.Manifest, s string) { m.Hooks.BeforeStop.Path = s },
		func(m *manifest.Manifest, s string) { m.Hooks.AfterStop.Path = "/" + s },
		func(m *manifest.Manifest, s string) { m.Volumes[0].Name = s },
		func(m *manifest.Manifest, s string) { m.Labels = map[string]string{s: s} },
		func(m *manifest.Manifest, s string) { m.Config = manifest.Config{"a": map[string]any{s: s}} },
		func(m *manifest.Manifest, s string) {
			m.Config = manifest.Config{"a": map[string]any{manifest.FileKey: "/" + s}}
		},
	}
	images := []func(*manifest.Manifest, string){
		func(m *manifest.Manifest, s string) {
			m.Launchables[0].Artifact.Ref = s + "@sha256:" + strings.Repeat("a", 64)
		},
		func(m *manifest.Manifest, s string) {
			m.Launchables[0].Artifact.Ref = strings.Replace(m.Launchables[0].Artifact.Ref, "web", s, 1)
		},
		func(m *manifest.Manifest, s string) { m.Launchables[0].Artifact.Platform = "linux/" + s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Command = s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].User = s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].User = "web:" + s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].WorkDir = "/" + s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Tmpfs[0].Path = "/" + s },
		func(m *manifest.Manifest, s string) { m.Launchables[0].Capabilities.Add[0] = strings.ToUpper(s) },
		func(m *manifest.Manifest, s string) { m.Volumes[0].Path = "/" + s },
	}
	valid := 0
	rapid.Check(t, func(rt *rapid.T) {
		of, change := all, fields
		if rapid.Bool().Draw(rt, "image") {
			of, change = allImage, images
		}
		m := decode(t, of)
		rapid.SampledFrom(change).Draw(rt, "field")(m, text.Draw(rt, "text"))
		wait := field.Duration(rapid.Int64Min(0).Draw(rt, "wait"))
		m.Health.InitialDelay = &wait
		canonical, err := m.Canonical()
		if err != nil {
			rt.Fatal(err)
		}
		if _, err := manifest.Decode(canonical); err != nil {
			return
		}
		valid++
		if err := conforms(t, schema, canonical); err != nil {
			rt.Fatalf("%s: %v", canonical, err)
		}
	})
	if valid == 0 {
		t.Error("no manifest was valid")
	}
}
