package manifest_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func page(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../docs/manifest.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// paths lists each field below a type as docs/manifest.md does, such as launchables[].name, and the fields of hooks
// once.
func paths(at string, t reflect.Type) []string {
	switch {
	case t == reflect.TypeFor[field.Duration](), t == reflect.TypeFor[manifest.Config]():
		return nil
	case t.Kind() == reflect.Pointer:
		return paths(at, t.Elem())
	case t.Kind() == reflect.Slice:
		return paths(at+"[]", t.Elem())
	case t.Kind() != reflect.Struct:
		return nil
	}
	var found []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := strings.TrimPrefix(at+"."+name, ".")
		found = append(found, path)
		below := path
		if t == reflect.TypeFor[manifest.Hooks]() {
			below = at + ".*"
		}
		found = append(found, paths(below, f.Type)...)
	}
	return found
}

// docs/manifest.md has exactly the fields of a manifest.
func TestFieldsAreDocumented(t *testing.T) {
	real := paths("", reflect.TypeFor[manifest.Manifest]())
	slices.Sort(real)
	real = slices.Compact(real)
	var documented []string
	for _, table := range strings.Split(page(t), "| field |")[1:] {
		table, _, _ = strings.Cut(table, "\n\n")
		for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
			documented = append(documented, row[1])
		}
	}
	slices.Sort(documented)
	if diff := cmp.Diff(real, documented); diff != "" {
		t.Errorf("the types have -, docs/manifest.md lists +:\n%s", diff)
	}
}

// The limits and defaults in docs/manifest.md are the code's.
func TestLimitsAreDocumented(t *testing.T) {
	text := page(t)
	for path, want := range map[string]string{
		"launchables":              "1 to 16",
		"ports":                    "up to 32",
		"volumes":                  "up to 16",
		"labels":                   "up to 64",
		"launchables[].args":       "up to 128",
		"launchables[].env":        "up to 128",
		"launchables[].stop_grace": "`" + manifest.DefaultStopGrace.String() + "`",
		"launchables[].stop_signal": "`" +
			strings.Join(manifest.StopSignals[:len(manifest.StopSignals)-1], "`, `") + "` or `",
		"launchables[].restart.backoff_min": "`" + manifest.DefaultBackoffMin.String() + "`",
		"launchables[].restart.backoff_max": "`1m`",
		"launchables[].resources.cpu":       "1,000,000",
		"launchables[].resources.memory":    "2^50",
		"launchables[].resources.pids":      "4,194,304",
		"health.interval":                   "`" + manifest.DefaultHealthInterval.String() + "`",
		"health.timeout":                    "`" + manifest.DefaultHealthTimeout.String() + "`",
		"health.success_threshold":          "up to 100",
		"health.restart_after":              "`" + manifest.MinRestartAfter.String() + "` to `24h`",
		"hooks.*.timeout":                   "`1m`",
	} {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(path) + "` \\|.*$").FindString(text)
		if !strings.Contains(row, want) {
			t.Errorf("%s: no %s in %q", path, want, row)
		}
	}
}

// Validation and the schema accept each example of docs/manifest.md. The first has all top-level fields except version.
func TestExamplesAreValid(t *testing.T) {
	schema := compile(t)
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page(t), -1)
	if len(examples) < 2 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, example := range examples {
		converted, err := document.ToJSON([]byte(example[1]), "a manifest")
		if err != nil {
			t.Fatalf("%s: %v", example[1], err)
		}
		if _, err := manifest.Decode(converted); err != nil {
			t.Errorf("%s: %v", example[1], err)
		}
		if err := conforms(t, schema, converted); err != nil {
			t.Errorf("%s: %v", example[1], err)
		}
	}
	for f := range reflect.TypeFor[manifest.Manifest]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !strings.Contains(examples[0][1], "\n"+name+":") &&
			name != "version" {
			t.Errorf("the complete example has no %s", name)
		}
	}
}

// Each field is in at least one manifest of these tests, so they miss no new field.
func TestAllHasEveryField(t *testing.T) {
	var written []string
	for _, text := range []string{all, allTCP, allScript, allService, allReady, allHung, allDrain, allImage} {
		written = append(written, filled("", reflect.ValueOf(decode(t, text)).Elem())...)
	}
	for _, path := range paths("", reflect.TypeFor[manifest.Manifest]()) {
		if !slices.Contains(written, path) {
			t.Errorf("no manifest has %s", path)
		}
	}
}

// filled lists the fields that are not zero, like paths.
func filled(at string, v reflect.Value) []string {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return filled(at, v.Elem())
	case v.Kind() == reflect.Slice:
		var found []string
		for i := range v.Len() {
			found = append(found, filled(at+"[]", v.Index(i))...)
		}
		return found
	case v.Kind() != reflect.Struct:
		return nil
	}
	var found []string
	for f, value := range v.Fields() {
		if value.IsZero() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := strings.TrimPrefix(at+"."+name, ".")
		found = append(found, path)
		if v.Type() == reflect.TypeFor[manifest.Hooks]() {
			path = at + ".*"
		}
		found = append(found, filled(path, value)...)
	}
	return found
}
