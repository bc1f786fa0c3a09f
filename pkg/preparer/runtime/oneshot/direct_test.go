package oneshot

import (
	"io"
	"os"
	"strings"
	"testing"

	rt "github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// Without MaxBytes, the three streams are separate and unlimited.
func TestDirect(t *testing.T) {
	t.Parallel()
	const length = 3 << 20
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	in, inEnd := pipe()
	out, outEnd := pipe()
	errs, errsEnd := pipe()
	read := func(from io.Reader) <-chan string {
		got := make(chan string, 1)
		go func() {
			text, _ := io.ReadAll(from)
			got <- string(text)
		}()
		return got
	}
	gotOut, gotErrs := read(out), read(errs)
	go func() {
		_, _ = io.WriteString(inEnd, strings.Repeat("x", length))
		inEnd.Close()
	}()
	c := script("/", "cat; echo trouble >&2; exit 3")
	c.Streams = rt.Streams{Input: in, Output: outEnd, Errors: errsEnd}
	exit, err := Run(t.Context(), c)
	if err != nil || exit.Code != 3 {
		t.Errorf("%+v, %v", exit, err)
	}
	outEnd.Close()
	errsEnd.Close()
	if text := <-gotOut; len(text) != length {
		t.Errorf("stdout has %d bytes, want %d", len(text), length)
	}
	if text := <-gotErrs; text != "trouble\n" {
		t.Errorf("stderr %q", text)
	}
	c = script("/", "cat; echo both >&2")
	all, allEnd := pipe()
	gotAll := read(all)
	c.Streams.Output = allEnd
	if exit, err := Run(t.Context(), c); err != nil || !exit.OK() {
		t.Errorf("%+v, %v", exit, err)
	}
	allEnd.Close()
	if text := <-gotAll; text != "both\n" {
		t.Errorf("output %q", text)
	}
}
