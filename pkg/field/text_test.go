package field_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/field"
)

func TestCut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		most int
		want string
	}{
		{"", 10, ""},
		{"short", 5, "short"},
		{"longer", 5, "lo..."},
		{"<<<<", 24, "<<<<"},
		{"<<<<", 23, "<<<..."},
		{"a\xffb", 5, "ab"},
		{"üüü", 6, "üüü"},
		{"üüü", 5, "ü..."},
		{"anything", 2, "..."},
	} {
		if got := field.Cut(tt.text, tt.most); got != tt.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", tt.text, tt.most, got, tt.want)
		}
	}
}

func TestCutTextsAreShortAndNotCutAgain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		text := strings.Repeat(rapid.String().Draw(r,
			"text")+string(rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(r, "bytes")), rapid.IntRange(0,
			100).Draw(r, "times"))
		most := rapid.IntRange(3, 300).Draw(r, "most")
		got := field.Cut(text, most)
		data, err := json.Marshal(got)
		if err != nil || len(data) > most+2 {
			r.Fatalf("%d bytes of JSON, allowed %d: %s, %v", len(data), most+2, data, err)
		}
		if !utf8.ValidString(got) || field.Cut(got, most) != got {
			r.Fatalf("%q becomes %q", got, field.Cut(got, most))
		}
	})
}

func TestFew(t *testing.T) {
	t.Parallel()
	items := []string{"n1", "n2", "n3"}
	for most, want := range map[int]string{
		1: "n1, and 2 more", 2: "n1, n2, and 1 more", 3: "n1, n2, n3",
		9: "n1, n2, n3",
	} {
		if got := field.Few(items, most, ", "); got != want {
			t.Errorf("Few(%d) = %q, want %q", most, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range []string{"0 pods", "1 pod", "2 pods"} {
		if got := field.Count(n, "pod"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
