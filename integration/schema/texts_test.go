package schema

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTexts(t *testing.T) {
	t.Parallel()
	got := texts{}
	got.read("pod.", "# A page\n\n| field | type | default | what it is |\n| --- | --- | --- | --- |\n"+
		"| `a` | text | `1m` | see [a *b*](#c) |\n| `b.*[].c`, `d` | | | `x` |\n"+
		"| `e` | | for `f` only | |\n| `g` | | for `f` only | g |\n\n"+
		"| what changes | what happens |\n| --- | --- |\n| `h` | nothing |\n")
	want := texts{
		"pod.a": "see a b. Default: 1m", "pod.b.*[].c": "x", "pod.d": "x",
		"pod.e": "x", "pod.g": "g, for f only",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for at, text := range map[string]string{
		"pod.a":         "see a b. Default: 1m",
		"pod.b.any[].c": "x", "pod.b.any.c": "", "pod.z": "",
	} {
		if got := got.of(at); got != text {
			t.Errorf("%s: %q", at, got)
		}
	}
	if got := section("a\n## One\ntext\n### Two\nmore\n", "## One"); got != "text" {
		t.Errorf("%q", got)
	}
}
