package layer_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/preparer/image/layer"
)

// FuzzUnpack unpacks any data above a layer with links that lead out of it. Seeds of all entries are in seeds.
func FuzzUnpack(f *testing.F) {
	for _, seed := range seeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		base, err := os.MkdirTemp("", "fuzz")
		if err != nil {
			t.Fatal(err)
		}
		below, target := filepath.Join(base, "below"), filepath.Join(base, "target")
		err = errors.Join(os.MkdirAll(below+"/usr/lib", 0o755), os.Symlink("usr/lib", below+"/lib"),
			os.Mkdir(target, 0o700), os.Symlink("../../../sentinel", below+"/out"),
			os.Symlink(base, below+"/abs"), os.Symlink("loop/x", below+"/loop"),
			os.WriteFile(below+"/old", nil, 0o644), os.WriteFile(base+"/sentinel", []byte("kept"), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		limits := layer.Limits{Bytes: 8 << 10, Entries: 50, Room: &archive.Room{Dir: base}}
		res, err := layer.Unpack(t.Context(), bytes.NewReader(data), target, []string{below}, limits)
		if err != nil && !errors.Is(err, archive.ErrArchive) && !errors.Is(err, archive.ErrTooLarge) {
			t.Errorf("an archive was taken for trouble of the node: %v", err)
		}
		if content, err := os.ReadFile(base + "/sentinel"); err != nil || string(content) != "kept" {
			t.Errorf("the file beside the tree: %q, %v", content, err)
		}
		if all, err := os.ReadDir(base); err != nil || len(all) != 3 {
			t.Errorf("written beside the tree: %v, %v", all, err)
		}
		if got := len(paths(t, below)); got != 7 {
			t.Errorf("the layer below has %d paths", got)
		}
		judge(t, target, limits, res, err == nil)
		if err := archive.RemoveTree(base); err != nil {
			t.Errorf("cannot be removed: %v", err)
		}
	})
}

// judge checks the rules for every tree, complete or not.
func judge(t *testing.T, target string, limits layer.Limits, res layer.Result, complete bool) {
	t.Helper()
	entries, total := 0, int64(0)
	err := filepath.WalkDir(target, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if path != target {
			entries++
		}
		switch info.Mode().Type() {
		case 0:
			total += info.Size()
		case fs.ModeDir, fs.ModeSymlink, fs.ModeNamedPipe:
		case fs.ModeDevice | fs.ModeCharDevice:
			if !whiteout(info) {
				t.Errorf("%s is a device", path)
			}
		default:
			t.Errorf("%s is a %s", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if entries > limits.Entries || complete && entries > res.Entries || total > limits.Bytes {
		t.Errorf("%d entries and %d bytes, allowed: %+v; %+v", entries, total, limits, res)
	}
}

// seeds returns archives with every kind of entry, valid and invalid.
func seeds(tb testing.TB) [][]byte {
	tb.Helper()
	all := [][]byte{{}, []byte("text"), {0x1f, 0x8b}, {0x28, 0xb5, 0x2f, 0xfd}}
	for _, entries := range [][]entry{
		{dir(".", 0o755, 1), dir("a", 0o700, 2), file("a/b", "content"), link("a/c", "/etc")},
		{file("lib/x", "x"), file("out/x", ""), file("abs/x", ""), file("loop/x", "")},
		{
			file(".wh.old", ""), file(".wh.lib", ""), file("lib/new", ""), file("usr/.wh..wh..opq", ""),
			file("usr/lib/x", ""),
		},
		{file("usr/.wh.lib", ""), dir("usr/lib", 0o755, 0), file(".wh..wh.plnk/1", ""), file(".wh.", "")},
		{
			file("f", "x"),
			{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "f"}},
			{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "p"}},
			{Header: tar.Header{Typeflag: tar.TypeChar, Name: "dev/c"}},
			{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "b"}},
		},
		{file("../x", ""), file("a/../../x", ""), link("a", "../.."), file("a/x", "")},
		{with(file("x", ""), func(e *entry) { e.PAXRecords = map[string]string{"SCHILY.xattr.user.a": "b"} })},
	} {
		stream := imagetest.Tar(tb, entries...)
		all = append(all, stream, imagetest.Gzip(tb, stream).Blob, imagetest.Zstd(tb, stream).Blob)
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, w.EncodeAll(stream, nil))
		w.Close()
	}
	return all
}
