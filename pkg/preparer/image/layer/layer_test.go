package layer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/preparer/image/layer"
	"github.com/rcfarm/rcfarm/pkg/preparer/image/overlay"
)

// needs is what these tests cannot do without: owners, whiteouts and attributes of overlay mounts.
const needs = "these tests need root, overlayfs, and extended attributes in the directory for temporary files"

type entry = imagetest.Entry

var file, dir, link = imagetest.File, imagetest.Dir, imagetest.Link

// stack unpacks layers above each other below base, and returns their directories, the highest first.
func stack(t *testing.T, base string, layers ...[]entry) (dirs []string, results []layer.Result) {
	t.Helper()
	for i, entries := range layers {
		stream := imagetest.Tar(t, entries...)
		target := filepath.Join(base, fmt.Sprintf("layer%d", i))
		if err := os.Mkdir(target, 0o700); err != nil {
			t.Fatal(err)
		}
		res, err := unpack(t.Context(), stream, target, dirs)
		if err != nil {
			t.Fatalf("layer %d: %v (%s)", i, err, needs)
		}
		if want := imagetest.Digest(stream); res.DiffID != want {
			t.Errorf("layer %d: diff id %s, want %s", i, res.DiffID, want)
		}
		dirs, results = append([]string{target}, dirs...), append(results, res)
	}
	return dirs, results
}

func unpack(ctx context.Context, stream []byte, target string, below []string) (layer.Result, error) {
	limits := layer.Limits{Bytes: 1 << 20, Entries: 1000, Room: &archive.Room{Dir: target}}
	return layer.Unpack(ctx, bytes.NewReader(stream), target, below, limits)
}

// mounted unpacks layers, mounts them, and calls see with the mount.
func mounted(t *testing.T, see func(t *testing.T, root string), layers ...[]entry) {
	t.Helper()
	disktest.Run(t, 32<<20, func(t *testing.T, base string) {
		dirs, _ := stack(t, base, layers...)
		mount := overlay.Layers{Lower: dirs, Upper: filepath.Join(base, "upper"), Work: filepath.Join(base, "work")}
		root := filepath.Join(base, "root")
		for _, made := range []string{mount.Upper, mount.Work, root} {
			if err := os.Mkdir(made, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := overlay.Mount(root, mount); err != nil {
			t.Fatalf("%v (%s)", err, needs)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(root, 0); err != nil {
				t.Error(err)
			}
		})
		see(t, root)
	})
}

// paths returns all paths below root, sorted.
func paths(t *testing.T, root string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(root, path); rel != "." && err == nil {
			if d.IsDir() {
				rel += "/"
			}
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return all
}

func wantPaths(t *testing.T, root string, want ...string) {
	t.Helper()
	if got := paths(t, root); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// wantOwner checks mode and owner of a path.
func wantOwner(t *testing.T, path string, mode fs.FileMode, uid, gid uint32) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Error(err)
		return
	}
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode() != mode || st.Uid != uid || st.Gid != gid {
		t.Errorf("%s: got %s %d:%d, want %s %d:%d (%s)", path, info.Mode(), st.Uid, st.Gid, mode, uid, gid, needs)
	}
}

func with(e entry, change func(*entry)) entry {
	change(&e)
	return e
}

func TestEntries(t *testing.T) {
	modified := time.Unix(1_000_000_000, 0)
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	dirs, results := stack(t, t.TempDir(), []entry{
		with(dir(".", 0o751, 7), func(e *entry) { e.ModTime = modified }),
		dir("/bin", 0o755, 0),
		with(file("bin/su", "code"), func(e *entry) {
			e.Mode, e.Uid, e.Gid, e.ModTime = 0o4755, 1, 2, modified
			e.PAXRecords = map[string]string{
				"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.user.note": "kept",
				"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.user.overlay.opaque": "y",
				"SCHILY.xattr.security.selinux": "x",
			}
		}),
		dir("tmp", 0o1777, 0),
		with(link("bin/sh", "/../../etc/shadow"), func(e *entry) { e.Uid = 5 }),
		{Header: tar.Header{Typeflag: tar.TypeLink, Name: "bin/hard", Linkname: "/bin/su"}},
		{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "tmp/fifo", Mode: 0o622, Uid: 9}},
		dir("dev", 0o755, 0),
		{Header: tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3}},
		{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}},
		file("twice", "first"), file("twice", "second"),
	})
	root := dirs[0]
	wantPaths(t, root, "bin/", "bin/hard", "bin/sh", "bin/su", "dev/", "tmp/", "tmp/fifo", "twice")
	wantOwner(t, root, fs.ModeDir|0o751, 7, 7)
	wantOwner(t, root+"/bin/su", fs.ModeSetuid|0o755, 1, 2)
	wantOwner(t, root+"/bin/hard", fs.ModeSetuid|0o755, 1, 2)
	wantOwner(t, root+"/bin/sh", fs.ModeSymlink|0o777, 5, 0)
	wantOwner(t, root+"/tmp", fs.ModeDir|fs.ModeSticky|0o777, 0, 0)
	wantOwner(t, root+"/tmp/fifo", fs.ModeNamedPipe|0o622, 9, 0)
	for _, path := range []string{root, root + "/bin/su"} {
		if info, err := os.Stat(path); err != nil || !info.ModTime().Equal(modified) {
			t.Errorf("%s: modified at %v, %v", path, info.ModTime(), err)
		}
	}
	if content, err := os.ReadFile(root + "/twice"); err != nil || string(content) != "second" {
		t.Errorf("%q, %v", content, err)
	}
	names := make([]byte, 1000)
	n, err := unix.Llistxattr(root+"/bin/su", names)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.FieldsFunc(string(names[:n]), func(r rune) bool { return r == 0 })
	slices.Sort(got)
	if !slices.Equal(got, []string{"security.capability", "user.note"}) {
		t.Errorf("attributes: %q (%s)", got, needs)
	}
	if results[0].Dependent {
		t.Error("a complete layer depends on the layers below")
	}
}

// What whiteouts hide is only what lies below, wherever they stand in the archive.
func TestWhiteouts(t *testing.T) {
	mounted(t, func(t *testing.T, root string) {
		wantPaths(t, root, "both/", "both/new", "dir/", "dir/new", "kept", "later/", "later/new", "opaque/",
			"opaque/new", "opaque/sub/", "opaque/sub/new", "replaced", "top/", "top/.wx")
	}, []entry{
		file("kept", ""), file("gone", ""), file("replaced", "old"),
		dir("dir", 0o755, 0), file("dir/old", ""), dir("dir/sub", 0o755, 0), file("dir/sub/old", ""),
		dir("opaque", 0o755, 0), file("opaque/old", ""), dir("opaque/sub", 0o755, 0), file("opaque/sub/old", ""),
		dir("both", 0o755, 0), file("both/old", ""), dir("later", 0o755, 0), file("later/old", ""),
		dir("removed", 0o755, 0), file("removed/old", ""),
	}, []entry{
		file(".wh.gone", ""), file(".wh.removed", ""), file("replaced", "new"), file(".wh.replaced", ""),
		dir("dir", 0o755, 0), file("dir/.wh.old", ""), file("dir/.wh.sub", ""), file("dir/new", ""),
		dir("opaque", 0o755, 0), file("opaque/new", ""), file("opaque/sub/new", ""), file("opaque/.wh..wh..opq", ""),
		file(".wh.both", ""), dir("both", 0o755, 0), file("both/new", ""),
		dir("later", 0o755, 0), file("later/new", ""), file(".wh.later", ""),
		dir("top", 0o755, 0), file("top/.wx", ""), file("top/.wh.nothing", ""),
		file(".wh..wh.aufs", ""), file(".wh..wh.plnk/1", ""),
	})
}

// A file lies in a directory that a whiteout has hidden: the directory is the layer's own, and no link is followed.
func TestDirectoryInPlaceOfAWhiteout(t *testing.T) {
	mounted(t, func(t *testing.T, root string) {
		wantPaths(t, root, "a/", "a/new", "l/", "l/new", "target/")
		wantOwner(t, root+"/a", fs.ModeDir|0o755, 0, 0)
	}, []entry{dir("a", 0o700, 5), file("a/old", ""), dir("target", 0o755, 0), link("l", "target")},
		[]entry{file(".wh.a", ""), file("a/new", ""), file(".wh.l", ""), file("l/new", "")})
}

// Directories that a layer leaves out take owner and mode from the layer below. Layers of tools like kaniko are so.
func TestDirectoriesThatALayerLeavesOut(t *testing.T) {
	mounted(t, func(t *testing.T, root string) {
		wantOwner(t, root+"/home", fs.ModeDir|0o711, 3, 3)
		wantOwner(t, root+"/home/app", fs.ModeDir|0o750, 1000, 1000)
		wantOwner(t, root+"/home/app/new", fs.ModeDir|0o755, 0, 0)
		wantOwner(t, root+"/hidden", fs.ModeDir|0o755, 0, 0)
		wantOwner(t, root+"/given", fs.ModeDir|0o701, 8, 8)
		wantPaths(t, root, "given/", "given/x", "hidden/", "hidden/x", "home/", "home/app/", "home/app/new/",
			"home/app/new/x")
	},
		[]entry{dir("home", 0o711, 3), dir("home/app", 0o700, 1), dir("hidden", 0o700, 4), dir("given", 0o700, 4)},
		[]entry{dir("home", 0o711, 3), dir("home/app", 0o750, 1000), file(".wh.hidden", "")},
		[]entry{file("home/app/new/x", ""), file("hidden/x", ""), file("given/x", ""), dir("given", 0o701, 8)},
	)
}

// An entry below a symbolic link of a lower layer lies in the link's target: Debian's /lib is such a link.
func TestLinksOfLayersBelow(t *testing.T) {
	mounted(t, func(t *testing.T, root string) {
		wantPaths(t, root, "a/", "a/b/", "a/b/c/", "a/b/c/y", "escape", "lib", "loop2", "up", "usr/", "usr/lib/",
			"usr/lib/hard", "usr/lib/ld.so", "usr/lib/x", "x/", "x/out/", "x/out/file")
		wantOwner(t, root+"/usr/lib", fs.ModeDir|0o711, 6, 6)
	}, []entry{
		dir("usr", 0o755, 0), dir("usr/lib", 0o711, 6), file("usr/lib/ld.so", ""), link("lib", "usr/lib"),
		link("up", "/../usr/../a/./b"), link("escape", "../../../x/out"), link("loop2", "loop2"),
	}, []entry{
		file("lib/x", ""), file("up/c/y", ""), file("escape/file", ""),
		{Header: tar.Header{Typeflag: tar.TypeLink, Name: "lib/hard", Linkname: "lib/x"}},
	})
}

func TestDependent(t *testing.T) {
	base := []entry{dir("a", 0o755, 0), link("l", "a")}
	tests := []struct {
		name  string
		layer []entry
		want  bool
	}{
		{"complete", []entry{dir("a", 0o755, 0), file("a/x", ""), file("a/.wh..wh..opq", "")}, false},
		{"a whiteout", []entry{file(".wh.l", "")}, true},
		{"a whiteout of nothing", []entry{file(".wh.none", "")}, true},
		{"complete, in another order", []entry{file("a/x", ""), dir("a", 0o755, 0)}, true},
		{"a directory is left out", []entry{file("a/x", "")}, true},
		{"a new directory is left out", []entry{file("new/x", "")}, true},
		{"behind a link", []entry{dir("a", 0o755, 0), file("l/x", "")}, true},
	}
	for _, tt := range tests {
		if _, results := stack(t, t.TempDir(), base, tt.layer); results[1].Dependent != tt.want {
			t.Errorf("%s: dependent: %v", tt.name, results[1].Dependent)
		}
	}
}

func TestCompressions(t *testing.T) {
	stream := imagetest.Tar(t, file("a", strings.Repeat("a", 100_000)))
	gz, zst := imagetest.Gzip(t, stream), imagetest.Zstd(t, stream)
	twice := append(imagetest.Gzip(t, stream[:700]).Blob, imagetest.Gzip(t, stream[700:]).Blob...)
	for name, blob := range map[string][]byte{
		"plain": stream, "gzip": gz.Blob, "zstd": zst.Blob, "gzip in two members": twice,
	} {
		target := t.TempDir()
		res, err := unpack(t.Context(), blob, target, nil)
		if err != nil || res.DiffID != gz.DiffID {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
		wantPaths(t, target, "a")
	}
	for name, blob := range map[string][]byte{
		"gzip cut off": gz.Blob[:len(gz.Blob)/2], "zstd cut off": zst.Blob[:len(zst.Blob)-1],
		"tar cut off":                stream[:1000],
		"gzip with another checksum": append(bytes.Clone(gz.Blob[:len(gz.Blob)-5]), 1, 2, 3, 4, 5),
		"data after gzip":            append(bytes.Clone(gz.Blob), "rest"...),
		"text":                       bytes.Repeat([]byte("not an archive. "), 100),
	} {
		if _, err := unpack(t.Context(), blob, t.TempDir(), nil); !errors.Is(err, archive.ErrArchive) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostileLayers(t *testing.T) {
	hard := func(name, target string) entry {
		return entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}}
	}
	big := strings.Repeat("x", 600<<10)
	var many []entry
	for i := range 1001 {
		many = append(many, file(fmt.Sprint(i), ""))
	}
	long := []entry{}
	for i := range 200 {
		long = append(long, file(strings.Repeat(strings.Repeat("n", 200)+"/", 4)+fmt.Sprint(i), ""))
	}
	tests := []struct {
		name    string
		entries []entry
		want    error
	}{
		{"leaves", []entry{file("../x", "")}, archive.ErrArchive},
		{"leaves in the middle", []entry{file("a/../../x", "")}, archive.ErrArchive},
		{"below a link", []entry{link("a", "/tmp"), file("a/x", "")}, archive.ErrArchive},
		{"below a file", []entry{file("a", ""), file("a/x", "")}, archive.ErrArchive},
		{"a link in place of a directory", []entry{dir("a", 0o755, 0), link("a", "/tmp")}, archive.ErrArchive},
		{"a directory in place of a link", []entry{link("a", "/tmp"), dir("a", 0o755, 0)}, archive.ErrArchive},
		{"a file in place of the root", []entry{file(".", "")}, archive.ErrArchive},
		{"a link in place of the root", []entry{link(".", "/tmp")}, archive.ErrArchive},
		{"a link without a target", []entry{link("a", "")}, archive.ErrArchive},
		{"a hard link to the host", []entry{hard("a", "../../etc/shadow")}, archive.ErrArchive},
		{"a hard link to a layer below", []entry{hard("a", "below")}, archive.ErrArchive},
		{"a hard link behind a link", []entry{hard("a", "etc/passwd")}, archive.ErrArchive},
		{"a hard link to a directory", []entry{dir("d", 0o755, 0), hard("a", "d")}, archive.ErrArchive},
		{"a hard link to itself", []entry{file("a", ""), hard("a", "a")}, archive.ErrArchive},
		{"a hard link to a whiteout", []entry{file(".wh.below", ""), hard("a", "below")}, archive.ErrArchive},
		{"a loop of links below", []entry{file("loop/x", "")}, archive.ErrArchive},
		{"a device", []entry{{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "a", Devmajor: 8}}}, archive.ErrArchive},
		{"a false whiteout", []entry{{Header: tar.Header{Typeflag: tar.TypeChar, Name: "a"}}}, archive.ErrArchive},
		{"an unknown type", []entry{{Header: tar.Header{Typeflag: 'Z', Name: "a"}}}, archive.ErrArchive},
		{"a whiteout of nothing", []entry{file(".wh.", "")}, archive.ErrArchive},
		{"a whiteout of the directory above", []entry{file("a/.wh...", "")}, archive.ErrArchive},
		{"below a whiteout", []entry{file(".wh.a/x", "")}, archive.ErrArchive},
		{"an impossible owner", []entry{with(file("a", ""), func(e *entry) { e.Uid = 1<<32 - 1 })}, archive.ErrArchive},
		{"attributes without end", []entry{with(file("a", ""), func(e *entry) {
			e.PAXRecords = map[string]string{"SCHILY.xattr.user.a": strings.Repeat("a", 5000)}
		})}, archive.ErrArchive},
		{"a bad capability", []entry{with(file("a", ""), func(e *entry) {
			e.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "x"}
		})}, archive.ErrArchive},
		{"too many bytes", []entry{file("a", big), file("b", big)}, archive.ErrTooLarge},
		{"too many entries", many, archive.ErrTooLarge},
		{"too long paths", long, archive.ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			lower := []entry{file("below", ""), link("loop", "loop"), link("etc", "/../../../../../../etc")}
			dirs, _ := stack(t, base, lower)
			target := filepath.Join(base, "target")
			if err := os.Mkdir(target, 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := unpack(t.Context(), imagetest.Tar(t, tt.entries...), target, dirs); !errors.Is(err, tt.want) ||
				!strings.Contains(err.Error(), "allowed: ") {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			wantPaths(t, base, append([]string{"layer0/", "layer0/below", "layer0/etc", "layer0/loop", "target/"},
				below(paths(t, target))...)...)
		})
	}
}

func below(names []string) (all []string) {
	for _, name := range names {
		all = append(all, "target/"+name)
	}
	return all
}

// A small blob does not keep the node busy: its stream ends at the limit.
func TestBombs(t *testing.T) {
	zeros := imagetest.Zstd(t, make([]byte, 64<<20)).Blob
	if len(zeros) > 64<<10 {
		t.Fatalf("the bomb has %d bytes", len(zeros))
	}
	stream := imagetest.Tar(t, file("a", ""))
	for name, blob := range map[string][]byte{
		"after the end": append(imagetest.Zstd(t, stream).Blob, zeros...),
		"gzip":          append(imagetest.Gzip(t, stream).Blob, imagetest.Gzip(t, make([]byte, 4<<20)).Blob...),
	} {
		if _, err := unpack(t.Context(), blob, t.TempDir(), nil); !errors.Is(err, archive.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCancelledUnpackEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := unpack(ctx, imagetest.Tar(t, file("a", "")), t.TempDir(), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestUnpackLeavesTheReserve(t *testing.T) {
	target := t.TempDir()
	limits := layer.Limits{Bytes: 1 << 20, Entries: 10, Room: &archive.Room{Dir: target, Reserve: 1 << 60}}
	_, err := layer.Unpack(t.Context(), bytes.NewReader(imagetest.Tar(t, file("a", ""))), target, nil, limits)
	if !errors.Is(err, archive.ErrNoSpace) {
		t.Error(err)
	}
}

// whiteout reports whether a file is what overlay mounts take for a whiteout.
func whiteout(info fs.FileInfo) bool {
	st := info.Sys().(*syscall.Stat_t)
	return info.Mode()&fs.ModeCharDevice != 0 && st.Rdev == 0
}
