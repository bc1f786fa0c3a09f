package rcctl

import (
	"bytes"
	"testing"
)

// A guard writes the same text however the input is cut into writes, and loses nothing at the end.
func TestGuardPieces(t *testing.T) {
	t.Parallel()
	const text = "ä\x1b[31m€\u202e\U0001F600\xff\xe2\x82\tend\r\n\u0085\xe2\x82"
	const want = `ä\x1b[31m€\u202e😀\xff\xe2\x82` + "\tend" + `\x0d` + "\n" + `\u0085\xe2\x82`
	for first := range len(text) + 1 {
		for second := first; second <= len(text); second++ {
			var out bytes.Buffer
			g := &guard{to: &out}
			for _, piece := range []string{text[:first], text[first:second], text[second:]} {
				if n, err := g.Write([]byte(piece)); n != len(piece) || err != nil {
					t.Fatalf("%d, %v", n, err)
				}
			}
			if err := endOutput(g, &out); err != nil {
				t.Fatal(err)
			}
			if out.String() != want {
				t.Fatalf("cut at %d and %d: %q, want %q", first, second, out.String(), want)
			}
		}
	}
}

// Colours pass only if the program allows them, and no other escapes pass.
func TestGuardColours(t *testing.T) {
	t.Parallel()
	for _, allowed := range []bool{false, true} {
		var out bytes.Buffer
		g := &guard{to: &out, colours: allowed}
		_, _ = g.Write([]byte(string(green) + "ok" + string(plainColour) + "\x1b[2J"))
		want := `\x1b[32mok\x1b[39m\x1b[2J`
		if allowed {
			want = "\x1b[32mok\x1b[39m" + `\x1b[2J`
		}
		if out.String() != want {
			t.Errorf("colours %t: %q, want %q", allowed, out.String(), want)
		}
	}
}
