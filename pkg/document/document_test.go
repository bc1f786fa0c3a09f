package document

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// JSON is returned unchanged, because a YAML decoder would turn 1.0 into 1 and lose digits.
func TestJSONIsNotChanged(t *testing.T) {
	in := `{"a": 1.0, "b": 123456789012345678901234567890, "c": 1e400}` + "\n"
	got, err := ToJSON([]byte(in), "a document")
	if err != nil || string(got) != in {
		t.Errorf("%s became %s, %v", in, got, err)
	}
	got, err = ToJSON([]byte("a: 9223372036854775807\nb: [yes]\n"), "a document")
	if want := `{"a":9223372036854775807,"b":[true]}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

func TestAllToJSON(t *testing.T) {
	docs, err := AllToJSON([]byte("a: 1\n---\nb: 2\n"), "documents")
	if err != nil || len(docs) != 2 || string(docs[0]) != `{"a":1}` || string(docs[1]) != `{"b":2}` {
		t.Errorf("%q, %v", docs, err)
	}
	for in, want := range map[string]string{
		"# nothing\n":             "document: missing; allowed: documents",
		"a: 1\n---\nb: 2\nb: 3\n": "b: a second time (line 4) is not valid; allowed: each key once",
		strings.Repeat(" ", 1<<20+1): "document: a size of more than 1048576 bytes is not valid; " +
			"allowed: at most 1048576 bytes",
	} {
		if _, err := AllToJSON([]byte(in), "documents"); err == nil || err.Error() != want {
			t.Errorf("%.20q: %v", in, err)
		}
	}
	if _, err := ToJSON([]byte("a: 1\n---\nb: 2\n"), "one"); err == nil ||
		err.Error() != "document: a file with 2 documents is not valid; allowed: one" {
		t.Error(err)
	}
}
