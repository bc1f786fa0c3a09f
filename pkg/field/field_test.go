package field_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/field"
)

func TestErrorText(t *testing.T) {
	long := strings.Repeat("ä", 60) // two bytes each
	for _, tt := range []struct {
		err  field.Error
		want string
	}{
		{field.Error{Field: "a.b", Allowed: "x"}, `a.b: missing; allowed: x`},
		{field.Error{Field: "a", Value: 7, Allowed: "x"}, `a: 7 is not valid; allowed: x`},
		{field.Error{Field: "a", Value: "q\n\x1b", Allowed: "x"}, `a: "q\n\x1b" is not valid; allowed: x`},
		{field.Error{Field: "a", Value: field.Text("a list"), Allowed: "x"}, `a: a list is not valid; allowed: x`},
		{
			field.Error{Field: "a", Value: long, Allowed: "x"},
			`a: "` + strings.Repeat("ä", 40) + `..." is not valid; allowed: x`,
		},
		{field.Error{Value: 7, Allowed: "x"}, `document: 7 is not valid; allowed: x`},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
	if e := (&field.Error{Field: strings.Repeat("k", 5000), Allowed: "x"}).Error(); len(e) > 300 {
		t.Errorf("a path of %d bytes is not bounded", len(e))
	}
}

func TestErrors(t *testing.T) {
	var errs, inner field.Errors
	if errs.Err() != nil {
		t.Error("no mistakes must be a nil error")
	}
	inner.Missing("url", "a URL")
	inner.Missing("", "something")
	inner.Add("[2]", 1, "0")
	errs.Nest("artifact", inner)
	errs.Nest("", inner[:1])
	want := "artifact.url: missing; allowed: a URL\nartifact: missing; allowed: something\n" +
		"artifact[2]: 1 is not valid; allowed: 0\nurl: missing; allowed: a URL"
	if got := errs.Err().Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var many field.Errors
	for range 10_000 {
		many.Missing("url", "a URL")
	}
	if got := many.Error(); strings.Count(got, "\n") != 100 || !strings.HasSuffix(got, "\nand 9900 more mistakes") {
		t.Errorf("10,000 mistakes: %d lines, %.300s", strings.Count(got, "\n"), got)
	}
}

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "a1-b": true, "0": true, strings.Repeat("a", field.MaxName): true,
		"": false, "A": false, "-a": false, "a-": false, "a.b": false, "a_b": false, "ä": false,
		"a\n": false, "a/b": false,
		strings.Repeat("a", field.MaxName+1): false,
	} {
		var errs field.Errors
		errs.CheckName("name", name)
		if (errs == nil) != ok {
			t.Errorf("%q: %v", name, errs)
		}
	}
}

func TestDuration(t *testing.T) {
	var d field.Duration
	if err := json.Unmarshal([]byte(`"1m30s"`), &d); err != nil || d != field.Duration(90*time.Second) {
		t.Errorf("got %v, %v", time.Duration(d), err)
	}
	if out, err := json.Marshal(d); err != nil || string(out) != `"1m30s"` {
		t.Errorf("got %s, %v", out, err)
	}
	for _, in := range []string{`"-1s"`, `"5"`, `5`, `""`, `null`, `"1x"`, `{}`} {
		if err := d.UnmarshalJSON([]byte(in)); err == nil {
			t.Errorf("%s is accepted", in)
		}
	}
	var none *field.Duration
	zero := field.Duration(0)
	if none.Or(time.Second) != time.Second || zero.Or(time.Second) != 0 {
		t.Error("an unset duration is the default, zero is zero")
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	below, above := map[string]int{"a": 1, "b": 1}, map[string]int{"b": 2, "c": 2}
	got := field.Merge(below, nil, above)
	if diff := cmp.Diff(map[string]int{"a": 1, "b": 2, "c": 2}, got); diff != "" || len(below) != 2 || len(above) != 2 {
		t.Error(diff, below, above)
	}
	if none := field.Merge[int](nil); none == nil || len(none) > 0 {
		t.Error(none)
	}
}

func TestWithout(t *testing.T) {
	t.Parallel()
	items := []string{"a", "b", "a", "c"}
	for _, tt := range []struct{ some, want []string }{
		{nil, items},
		{[]string{"a", "d"}, []string{"b", "c"}},
		{items, []string{}},
	} {
		if diff := cmp.Diff(tt.want, field.Without(items, tt.some)); diff != "" || len(items) != 4 || items[1] != "b" {
			t.Error(tt.some, diff, items)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	items := []string{"a", "b", "b"}
	is := func(want string) func(*string) bool { return func(s *string) bool { return *s == want } }
	if got := field.Find(items, is("b")); got != &items[1] {
		t.Error(got)
	}
	if got := field.Find(items, is("c")); got != nil {
		t.Error(*got)
	}
}

func TestCheckOneOf(t *testing.T) {
	t.Parallel()
	type size string
	for value, want := range map[size]string{
		"s": "",
		"":  `size: "" is not valid; allowed: s, m or l`,
		"x": `size: "x" is not valid; allowed: s, m or l`,
	} {
		var errs field.Errors
		if field.CheckOneOf(&errs, "size", value, "s", "m", "l"); errs.Error() != want {
			t.Errorf("%q: %v", value, errs)
		}
	}
	if got := field.Or("one") + field.Or[string](); got != "one" {
		t.Error(got)
	}
}
