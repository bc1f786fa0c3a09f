package install

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/manifest"
)

func treeOf(t *testing.T, text string) manifest.Config {
	t.Helper()
	var c manifest.Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRenderConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	two := write("two", "a\n\n")
	crlf := write("crlf", "b\r\n")
	none := write("none", `"c" <é>`)
	got, err := renderConfig(treeOf(t, `{"n": 12345678901234567890, "f": 1.0, "s": "<&>", "deep": [{"x": {"$file": "`+
		two+`"}}, {"$file": "`+crlf+`"}], "c": {"$file": "`+none+`"}}`))
	want := `{
  "c": "\"c\" <é>",
  "deep": [
    {
      "x": "a\n"
    },
    "b"
  ],
  "f": 1.0,
  "n": 12345678901234567890,
  "s": "<&>"
}
`
	if err != nil || string(got) != want {
		t.Errorf("got %s (%v), want %s", got, err, want)
	}
	if got, err := renderConfig(nil); err != nil || string(got) != "{}\n" {
		t.Errorf("no config: %q (%v)", got, err)
	}

	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	full := strings.Repeat("x", maxConfigFile)
	write("full", full+"\n")
	var many []string
	for range 17 {
		many = append(many, `{"$file": "`+filepath.Join(dir, "fits")+`"}`)
	}
	write("fits", full)
	for name, c := range map[string]struct{ config, says string }{
		"missing":     {`{"a": {"b": {"$file": "/no/such"}}}`, "config.a.b: open /no/such"},
		"a directory": {`{"a": [1, {"$file": "` + dir + `"}]}`, "config.a[1]: " + dir + " is a d"},
		"a pipe":      {`{"a": {"$file": "` + pipe + `"}}`, "allowed: a regular file"},
		"too large": {
			`{"a": {"$file": "` + filepath.Join(dir, "full") + `"}}`,
			"more than 65536 bytes, which is what a file may have",
		},
		"not text":  {`{"a": {"$file": "` + write("binary", "\xff\xfe") + `"}}`, "not UTF-8"},
		"more keys": {`{"a": {"$file": "/x", "b": 1}}`, "with other keys"},
		"no path":   {`{"a": {"$file": 7}}`, "something other than a path"},
		"too much":  {`{"a": [` + strings.Join(many, ",") + `]}`, "allowed: at most 1048576"},
	} {
		if _, err := renderConfig(treeOf(t, c.config)); err == nil || !strings.Contains(err.Error(), c.says) ||
			strings.Contains(err.Error(), "xxxx") {
			t.Errorf("%s: got %.300v", name, err)
		}
	}
}
