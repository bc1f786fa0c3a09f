package artifact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
)

// FuzzUnpack unpacks compressed data as it is, and other data as a tar stream. Inputs in testdata reach code that the
// seeds here do not reach.
func FuzzUnpack(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.HasPrefix(data, []byte("\x1f\x8b")) { // without this header, gzip would refuse the data at once
			unpackAndJudge(t, data)
			return
		}
		var zipped bytes.Buffer
		zw, err := gzip.NewWriterLevel(&zipped, gzip.NoCompression)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := zw.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := zw.Close(); err != nil {
			t.Fatal(err)
		}
		unpackAndJudge(t, zipped.Bytes())
	})
}

func unpackAndJudge(t *testing.T, packed []byte) {
	t.Helper()
	base, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(base, "tree")
	if err := errors.Join(os.Mkdir(tree, 0o700),
		os.WriteFile(filepath.Join(base, "sentinel"), []byte("kept"), 0o600)); err != nil {
		t.Fatal(err)
	}
	limits := limits{bytes: 8 << 10, entries: 50, room: &archive.Room{Dir: base}}
	unpackErr := unpack(context.Background(), bytes.NewReader(packed), tree, limits)
	if content, err := os.ReadFile(filepath.Join(base, "sentinel")); err != nil || string(content) != "kept" {
		t.Errorf("the file beside the tree: %q, %v", content, err)
	}
	if entries, err := os.ReadDir(base); err != nil || len(entries) != 2 {
		t.Errorf("written outside of the tree: %v, %v", entries, err)
	}
	judgeTree(t, tree, limits, unpackErr == nil)
	if unpackErr != nil && !final(unpackErr) {
		t.Errorf("an archive was taken for trouble of the node: %v", unpackErr)
	}
	if err := archive.RemoveTree(base); err != nil {
		t.Errorf("cannot be removed: %v", err)
	}
}

// judgeTree also judges incomplete trees.
func judgeTree(t *testing.T, tree string, limits limits, complete bool) {
	t.Helper()
	var entries int
	var total int64
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode()
		if path != tree {
			entries++
		}
		switch mode.Type() {
		case 0:
			total += info.Size()
		case fs.ModeDir:
		case fs.ModeSymlink:
			if complete {
				judgeLink(t, tree, path)
			}
			return nil
		default:
			t.Errorf("%s is a %s", path, mode)
		}
		if mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			t.Errorf("%s has mode %s", path, mode)
		}
		if complete && (mode.Perm()&0o222 != 0 || mode.Perm()&0o444 != 0o444) {
			t.Errorf("%s has mode %s, want it readable and not writable for all", path, mode)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if entries > limits.entries || total > limits.bytes {
		t.Errorf("%d entries and %d bytes, allowed: %+v", entries, total, limits)
	}
}

func judgeLink(t *testing.T, tree, path string) {
	t.Helper()
	real, err := filepath.EvalSymlinks(tree)
	if err != nil {
		t.Fatal(err)
	}
	to, err := filepath.EvalSymlinks(path)
	if err == nil && to != real && !strings.HasPrefix(to, real+"/") {
		t.Errorf("link %s leads to %s", path, to)
	}
}

// seeds has every kind of entry, valid and invalid.
func seeds(tb testing.TB) [][]byte {
	tb.Helper()
	pack := func(headers ...tar.Header) []byte {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		for _, h := range headers {
			content := strings.Repeat("x", int(h.Size))
			if err := tw.WriteHeader(&h); err != nil {
				tb.Fatal(err)
			}
			if _, err := tw.Write([]byte(content)); err != nil {
				tb.Fatal(err)
			}
		}
		if err := tw.Close(); err != nil {
			tb.Fatal(err)
		}
		return buf.Bytes()
	}
	reg := func(name string, mode, size int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size}
	}
	link := func(kind byte, name, target string) tar.Header {
		return tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}
	}
	dir := tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755}
	return [][]byte{
		nil,
		pack(dir, reg("d/a", 0o755, 3), link(tar.TypeSymlink, "l", "d/a"), link(tar.TypeLink, "h", "d/a"),
			reg("d/a", 0o600, 0)),
		pack(link(tar.TypeSymlink, "d", ".."), reg("d/x", 0o644, 1)),
		pack(dir, link(tar.TypeSymlink, "d/l", ".."), link(tar.TypeSymlink, "m", "d/l/../x")),
		pack(reg("../x", 0o644, 1)),
		pack(reg("/etc/x", 0o644, 1)),
		pack(reg("s", 0o4755, 1)),
		pack(tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}),
		pack(reg("big", 0o644, 5_000), reg("big2", 0o644, 5_000)),
		pack(reg(strings.Repeat("a/", 60)+"x", 0o644, 0)),
		pack(reg(strings.Repeat("long", 40), 0o644, 0), link(tar.TypeSymlink, "l", strings.Repeat("t", 200))),
		pack(tar.Header{
			Typeflag: tar.TypeReg, Name: "pax", Mode: 0o644, PAXRecords: map[string]string{"comment": "c"},
			Format: tar.FormatPAX,
		}),
	}
}
