package rcctl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// guard writes control characters, and those that change the direction of text, as escapes such as \x1b, because pods
// and records may contain them. It keeps line ends and tabs.
type guard struct {
	to      io.Writer
	colours bool   // the colours of tables may pass
	rest    []byte // the beginning of an incomplete character
}

func guarded(w io.Writer) io.Writer {
	if isTerminal(w) {
		return &guard{to: w}
	}
	return w
}

func unguarded(w io.Writer) io.Writer {
	if g, is := w.(*guard); is {
		return g.to
	}
	return w
}

// Write implements io.Writer.
func (g *guard) Write(p []byte) (int, error) {
	text := append(g.rest, p...)
	end := len(text) - partial(text)
	g.rest = bytes.Clone(text[end:])
	if _, err := io.WriteString(g.to, g.harmless(text[:end])); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close writes the rest, an incomplete character.
func (g *guard) Close() error {
	rest := g.rest
	g.rest = nil
	_, err := io.WriteString(g.to, g.harmless(rest))
	return err
}

// partial returns how many bytes at the end of a text begin a character.
func partial(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) && !utf8.FullRune(tail) {
			return n
		}
	}
	return 0
}

func (g *guard) harmless(text []byte) string {
	var out strings.Builder
	for len(text) > 0 {
		if n := g.colour(text); n > 0 {
			out.Write(text[:n])
			text = text[n:]
			continue
		}
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1, r < utf8.RuneSelf && unicode.IsControl(r) && r != '\n' && r != '\t':
			fmt.Fprintf(&out, `\x%02x`, text[0])
		case unicode.Is(acts, r):
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.Write(text[:n])
		}
		text = text[n:]
	}
	return out.String()
}

// colour returns the length of a colour at the beginning of a text that may pass.
func (g *guard) colour(text []byte) int {
	if g.colours {
		for _, c := range []colour{plainColour, green, yellow, red} {
			if bytes.HasPrefix(text, []byte(c)) {
				return len(c)
			}
		}
	}
	return 0
}

// acts are the characters beyond ASCII on which terminals act: control characters, separators of lines, and those that
// change the direction of text.
var acts = &unicode.RangeTable{R16: []unicode.Range16{
	{Lo: 0x80, Hi: 0x9f, Stride: 1},
	{Lo: 0x61c, Hi: 0x61c, Stride: 1},
	{Lo: 0x200e, Hi: 0x200f, Stride: 1},
	{Lo: 0x2028, Hi: 0x202e, Stride: 1},
	{Lo: 0x2066, Hi: 0x2069, Stride: 1},
}, LatinOffset: 1}

func rawFlag() []cli.Flag {
	return toggle("raw", "every byte as it is, on a terminal, too: a pod's output can then control the terminal")
}

func bytesTo(c *cli.Context, w io.Writer) io.Writer {
	if c.Bool("raw") {
		return unguarded(w)
	}
	return w
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok || file == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// terminal reports whether a writer is a terminal that can do more than print lines.
func terminal(w io.Writer) bool { return os.Getenv("TERM") != "dumb" && isTerminal(unguarded(w)) }

// coloured reports whether to write colours (https://no-color.org). If so, the guard in front of w lets colours pass
// from now on.
func coloured(w io.Writer) bool {
	help := os.Getenv("NO_COLOR") == "" && terminal(w)
	if g, is := w.(*guard); is {
		g.colours = help
	}
	return help
}

func endOutput(writers ...io.Writer) error {
	var errs []error
	for _, w := range writers {
		if g, is := w.(*guard); is {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(errs...)
}
