package field_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/field"
)

type part struct {
	Name string          `json:"name"`
	Wait *field.Duration `json:"wait,omitempty"`
}

type doc struct {
	Embedded
	Count  int               `json:"count"`
	Small  int8              `json:"small"`
	Maybe  *int              `json:"maybe"`
	On     bool              `json:"on"`
	Text   string            `json:"text"`
	Parts  []part            `json:"parts"`
	Labels map[string]string `json:"labels"`
	Wait   field.Duration    `json:"wait"`
	Any    any               `json:"any"`
	Hidden string            `json:"-"`
	Plain  string
}

// Embedded is exported, so its fields belong to the document.
type Embedded struct {
	Kind string `json:"kind"`
}

func TestDecodeErrors(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{
			"unknown field", `{"nope": 1}`,
			`nope: unknown field; allowed: Plain, any, count, kind, labels, maybe, on, parts, small, text, wait`,
		},
		{
			"hidden field", `{"Hidden": "x"}`,
			`Hidden: unknown field; allowed: Plain, any, count, kind, labels, maybe, on, parts, small, text, wait`,
		},
		{
			"case matters", `{"Count": 1}`,
			`Count: unknown field; allowed: Plain, any, count, kind, labels, maybe, on, parts, small, text, wait`,
		},
		{
			"unknown field in a list", `{"parts": [{"name": "a"}, {"nam": "b"}]}`,
			`parts[1].nam: unknown field; allowed: name, wait`,
		},
		{"string for a number", `{"count": "3"}`, `count: "3" is not valid; allowed: a whole number`},
		{"fraction", `{"count": 1.5}`, `count: 1.5 is not valid; allowed: a whole number that fits int`},
		{"too large", `{"small": 300}`, `small: 300 is not valid; allowed: a whole number that fits int8`},
		{"number for a string", `{"text": 5}`, `text: the number 5 is not valid; allowed: a string; put it in quotes`},
		{
			"word that YAML reads as a truth", `{"text": true}`,
			`text: true is not valid; allowed: a string; put it in quotes`,
		},
		{"null for a string", `{"text": null}`, `text: null is not valid; allowed: a string`},
		{"string for a truth", `{"on": "yes"}`, `on: "yes" is not valid; allowed: true or false`},
		{"map for a list", `{"parts": {}}`, `parts: a map is not valid; allowed: a list`},
		{"list for a map", `{"labels": []}`, `labels: a list is not valid; allowed: a map`},
		{
			"list for an object", `{"parts": [[]]}`,
			`parts[0]: a list is not valid; allowed: a map with the fields name, wait`,
		},
		{
			"wrong type in a map", `{"labels": {"a": "x", "b": 1}}`,
			`labels.b: the number 1 is not valid; allowed: a string; put it in quotes`,
		},
		{
			"top level", `[]`,
			`document: a list is not valid; allowed: a map with the fields Plain, any, count, kind, labels, maybe, on, parts, small, text, wait`,
		},
		{
			"null document", `null`,
			`document: null is not valid; allowed: a map with the fields Plain, any, count, kind, labels, maybe, on, parts, small, text, wait`,
		},
		{"repeated key", `{"count": 1, "count": 2}`, `count: a second time is not valid; allowed: each key once`},
		{
			"repeated key below", `{"parts": [{"name": "a", "name": "a"}]}`,
			`parts[0].name: a second time is not valid; allowed: each key once`,
		},
		{
			"duration without unit", `{"wait": 5}`,
			`wait: 5 is not valid; allowed: a length of time with a unit, zero or more, such as "500ms", "30s" or "10m"`,
		},
		{
			"negative duration", `{"parts": [{"wait": "-1s"}]}`,
			`parts[0].wait: "-1s" is not valid; allowed: a length of time with a unit, zero or more, such as "500ms", "30s" or "10m"`,
		},
		{
			"null duration", `{"wait": null}`,
			`wait: null is not valid; allowed: a length of time with a unit, zero or more, such as "500ms", "30s" or "10m"`,
		},
		{
			"control characters in a key", `{"labels": {"a\u001b[31m": 1}}`,
			`"labels.a\x1b[31m": the number 1 is not valid; allowed: a string; put it in quotes`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d doc
			err := field.Decode([]byte(tt.in), &d)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestDecodeReportsAllMistakes(t *testing.T) {
	var d doc
	err := field.Decode([]byte(`{"count": "x", "on": 1, "parts": [{"a": 1}, {"b": 2}], "count": 2}`), &d)
	if err == nil || len(strings.Split(err.Error(), "\n")) != 4 {
		t.Errorf("want four lines, got %v", err)
	}
}

func TestDecodeTextThatIsNoDocument(t *testing.T) {
	for _, in := range []string{``, `{`, `{"count": 1} {"count": 2}`, `{"count": 1} x`, `hello`} {
		var d doc
		if err := field.Decode([]byte(in), &d); err == nil || !strings.Contains(err.Error(), "parse document") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestDecode(t *testing.T) {
	var got doc
	in := `{"kind": "k", "count": 3, "maybe": null, "on": true, "text": "t", "parts": [{"name": "a", "wait": "1m30s"}],
		"labels": {"x": "y"}, "wait": "0s", "any": {"free": [1]}, "Plain": "p"}`
	if err := field.Decode([]byte(in), &got); err != nil {
		t.Fatal(err)
	}
	wait := field.Duration(90 * time.Second)
	want := doc{
		Embedded: Embedded{Kind: "k"}, Count: 3, On: true, Text: "t", Parts: []part{{Name: "a", Wait: &wait}},
		Labels: map[string]string{"x": "y"}, Any: map[string]any{"free": []any{1.0}}, Plain: "p",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Decode does not panic for any valid JSON. If it accepts a document, it also accepts the JSON of the result.
func TestDecodeAnyJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data, err := json.Marshal(anyJSON(3).Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		var d part
		if field.Decode(data, &d) != nil {
			return
		}
		again, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := field.Decode(again, &d); err != nil {
			t.Fatalf("%s was accepted, %s is not: %v", data, again, err)
		}
	})
}

func anyJSON(depth int) *rapid.Generator[any] {
	scalar := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Bool(), toAny[bool]), rapid.Map(rapid.IntRange(-9, 9), toAny[int]),
		rapid.Map(rapid.SampledFrom([]string{"", "a", "1s", "-1s"}), toAny[string]),
	)
	if depth == 0 {
		return scalar
	}
	key := rapid.SampledFrom([]string{"name", "wait", "x"})
	return rapid.OneOf(scalar,
		rapid.Map(rapid.MapOfN(key, anyJSON(depth-1), 0, 3), toAny[map[string]any]),
		rapid.Map(rapid.SliceOfN(anyJSON(depth-1), 0, 3), toAny[[]any]))
}

func toAny[T any](v T) any { return v }
