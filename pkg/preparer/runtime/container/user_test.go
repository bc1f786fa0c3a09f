package container_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/container"
)

func TestLookup(t *testing.T) {
	t.Parallel()
	accounts := container.Accounts{
		Passwd: []byte("# comment\n\nroot:x:0:0:root:/root:/bin/sh\n" +
			"broken\nfew:x:5:5\nmany:x:5:5:::::\nnan:x:five:5::/:\n" +
			"big:x:4294967295:5::/:\nsign:x:+5:5::/:\n:x:5:5::/:\n" +
			"app:x:1000:1000::/home/app:\napp:x:1001:1001::/other:\nrel:x:6:6::home:\n  spaced:x:7:7::/s:  \r\n" +
			"12:x:1200:1200::/twelve:\n"),
		Group: []byte("root:x:0:app\napp:x:1000:app\nwheel:x:10:root,app\nwheel:x:11:\nbad:x:-1:app\ntwice:x:10:app\n" +
			"adm:x:4:app,root\n"),
	}
	for text, want := range map[string]container.User{
		"":           {Home: "/root", Groups: []uint32{4, 10}},
		"0":          {Home: "/root", Groups: []uint32{4, 10}},
		"root":       {Home: "/root", Groups: []uint32{4, 10}},
		"app":        {UID: 1000, GID: 1000, Home: "/home/app", Groups: []uint32{0, 4, 10}},
		"1000":       {UID: 1000, GID: 1000, Home: "/home/app", Groups: []uint32{0, 4, 10}},
		"1001":       {UID: 1001, GID: 1001, Home: "/other", Groups: []uint32{0, 4, 10, 1000}},
		"app:wheel":  {UID: 1000, GID: 10, Home: "/home/app"},
		"app:0":      {UID: 1000, GID: 0, Home: "/home/app"},
		"77":         {UID: 77, Home: "/"},
		"77:88":      {UID: 77, GID: 88, Home: "/"},
		"rel":        {UID: 6, GID: 6, Home: "/"},
		"spaced":     {UID: 7, GID: 7, Home: "/s"},
		"12":         {UID: 12, Home: "/"}, // a number is never a name
		"4294967294": {UID: 4294967294, Home: "/"},
		"0000000012": {UID: 12, Home: "/"},
	} {
		got, err := accounts.Lookup(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v %s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"nobody": "no account", "few": "no account", "many": "no account", "nan": "no account", "big": "no account",
		"sign": "no account", "-1": "no account", "+5": "no account", "4294967295": "no account",
		"app:staff": "no group",
		"app:bad":   "no group", ":": "user:group", "app:": "user:group", ":app": "user:group", "a:b:c": "user:group",
		"app:-1": "no group",
	} {
		if got, err := accounts.Lookup(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v; want %s", text, got, err, want)
		}
	}
	if got, err := (container.Accounts{}).Lookup("root"); got.UID != 0 || got.Home != "/" || err != nil {
		t.Errorf("root without a file: %+v, %v", got, err)
	}
	var many strings.Builder
	for i := range 1025 {
		fmt.Fprintf(&many, "g%d:x:%d:app\n", i, i+2000)
	}
	accounts.Group = []byte(many.String())
	if _, err := accounts.Lookup("app"); err == nil || !strings.Contains(err.Error(), "at most 1024 groups") {
		t.Errorf("too many groups: %v", err)
	}
}

// Links in an image begin at the image's root and never lead out of it. Only regular files are opened.
func TestReadFiles(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "secret")
	write(t, outside, "secret")
	for name, tt := range map[string]struct {
		make func(t *testing.T, root string)
		want string // the content of passwd
		fail string
	}{
		"missing": {make: func(*testing.T, string) {}},
		"a file":  {make: func(t *testing.T, root string) { write(t, root+"/etc/passwd", "content") }, want: "content"},
		"an absolute link": {make: func(t *testing.T, root string) {
			write(t, root+"/store/passwd", "content")
			link(t, "/store/passwd", root+"/etc/passwd")
		}, want: "content"},
		"a link of a directory": {make: func(t *testing.T, root string) {
			write(t, root+"/store/passwd", "content")
			link(t, "../../../store", root+"/etc")
		}, want: "content"},
		"a link out": {make: func(t *testing.T, root string) { link(t, outside, root+"/etc/passwd") }},
		"many levels out": {make: func(t *testing.T, root string) {
			link(t, strings.Repeat("../", 40)+outside, root+"/etc/passwd")
		}},
		"a link to a device": {
			make: func(t *testing.T, root string) { link(t, "/dev/urandom", root+"/etc/group") }, fail: "it leads to ",
		},
		"a link to itself": {
			make: func(t *testing.T, root string) { link(t, "passwd", root+"/etc/passwd") }, fail: "too many levels",
		},
		"a link of proc": {
			make: func(t *testing.T, root string) { link(t, "/proc/self/environ", root+"/etc/passwd") },
			fail: "it leads to /proc/self/environ",
		},
		"a directory": {
			make: func(t *testing.T, root string) { write(t, root+"/etc/passwd/x", "") },
			fail: "allowed: a regular file",
		},
		"a file in place of a directory": {make: func(t *testing.T, root string) { write(t, root+"/etc", "") }},
		"a pipe": {make: func(t *testing.T, root string) {
			if err := os.MkdirAll(root+"/etc", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(root+"/etc/passwd", 0o644); err != nil {
				t.Fatal(err)
			}
		}, fail: "allowed: a regular file"},
		"too large": {
			make: func(t *testing.T, root string) { write(t, root+"/etc/passwd", strings.Repeat("x", 1<<20+1)) },
			fail: "/etc/passwd has more than 1048576 bytes",
		},
		"the largest": {
			make: func(t *testing.T, root string) { write(t, root+"/etc/passwd", strings.Repeat("x", 1<<20)) },
			want: strings.Repeat("x", 1<<20),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			tt.make(t, root)
			files, err := container.ReadFiles(root, []string{"/dev", "/proc", "/sys", "/volume"})
			got := files.Accounts
			switch {
			case tt.fail == "" && err != nil:
				t.Error(err)
			case tt.fail != "" && (err == nil || !strings.Contains(err.Error(), tt.fail)):
				t.Errorf("%v, want %s", err, tt.fail)
			case string(got.Passwd) != tt.want || len(got.Group) > 0:
				t.Errorf("read %d bytes: %.20q", len(got.Passwd), got.Passwd)
			}
		})
	}
	_, err := container.ReadFiles("/no/such/root", nil)
	if err == nil || !strings.Contains(err.Error(), "/no/such/root") {
		t.Errorf("no root: %v", err)
	}
}

// A path leads where it leads in the container. What does not exist is kept.
func TestReadFilesFollowsLinks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/real/dir/file", "")
	link(t, "/real", root+"/abs")
	link(t, "real/dir", root+"/rel")
	link(t, "../../../../../dev", root+"/out")
	link(t, "/no/../dev/x", root+"/dangling")
	link(t, "loop", root+"/loop")
	link(t, "/", root+"/top")
	link(t, "/abs/dir/../../rel", root+"/chain")
	link(t, "/proc/self/root/etc", root+"/magic")
	for at, want := range map[string]string{
		"/real/dir": "/real/dir", "/abs/dir/new": "/real/dir/new", "/rel/file/x": "/real/dir/file/x", "/out": "/dev",
		"/out/null": "/dev/null", "/dangling/y": "/dev/x/y", "/top": "/", "/top/a": "/a", "/chain": "/real/dir",
		"/magic": "/proc/self/root/etc", "/../../x": "/x", "": "/", "/none/deep": "/none/deep",
	} {
		files, err := container.ReadFiles(root, []string{at})
		if got := files.Places[at]; got != want || err != nil {
			t.Errorf("%q leads to %q, want %q: %v", at, got, want, err)
		}
	}
	if _, err := container.ReadFiles(root, []string{"/loop/x"}); !errors.Is(err, unix.ELOOP) ||
		!strings.Contains(err.Error(), "find the image's /loop/x") {
		t.Errorf("a loop: %v", err)
	}
	long := "/" + strings.Repeat("x", 300)
	if _, err := container.ReadFiles(root, []string{long}); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("a name that no file can have: %v", err)
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, file string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, file); err != nil {
		t.Fatal(err)
	}
}
