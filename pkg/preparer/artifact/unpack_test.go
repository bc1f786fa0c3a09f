package artifact_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

var errAny = errors.New("any")

func quiet(t *testing.T) *log.Logger {
	t.Helper()
	return log.New(io.Discard, "", 0)
}

type entry struct {
	tar.Header
	content string
}

func file(name string, mode int64, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}, content}
}

func dirEntry(name string) entry {
	return entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func hardlink(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}, ""}
}

func special(name string, flag byte) entry {
	return entry{tar.Header{Typeflag: flag, Name: name, Mode: 0o644}, ""}
}

func launch() entry { return file("bin/launch", 0o755, "#!/bin/sh\n") }

func tarball(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		if err := tw.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func compress(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	if _, err := zw.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	return compress(t, tarball(t, entries...))
}

func goodArchive(t testing.TB) []byte {
	t.Helper()
	return archive(t, dirEntry("bin/"), launch())
}

// sparse returns an archive with a GNU sparse file (in PAX) that is one hole.
func sparse(t testing.TB, name string, size string) []byte {
	t.Helper()
	// archive/tar writes no such GNU keys, so these are raw PAX records.
	record := func(key, value string) string {
		body := " " + key + "=" + value + "\n"
		for n := len(body); ; n++ {
			if s := strconv.Itoa(n) + body; len(s) == n {
				return s
			}
		}
	}
	records := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") +
		record("GNU.sparse.name", name) + record("GNU.sparse.realsize", size)
	sparseMap := "1\n" + size + "\n0\n"
	sparseMap += strings.Repeat("\x00", 512-len(sparseMap))
	data := tarball(t, launch(), file("PaxHeaders/x", 0o644, records), file("x", 0o644, sparseMap))
	// Make the second entry a PAX header: type flag 'x' at offset 156, and a new checksum.
	header := data[1024:1536]
	header[156] = 'x'
	copy(header[148:156], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return compress(t, data)
}

func TestUnpackRefusesBadArchives(t *testing.T) {
	many := make([]entry, 0, 101)
	for range 101 {
		many = append(many, dirEntry("d/"))
	}
	good := goodArchive(t)
	tests := []struct {
		name string
		data []byte
		is   error
		want string
	}{
		{
			"parent", archive(t, launch(), file("../x", 0o644, "")), artifact.ErrArchive,
			`entry "../x": leaves the archive; allowed: relative paths inside it`,
		},
		{
			"parent in the middle", archive(t, launch(), file("a/../../x", 0o644, "")), artifact.ErrArchive,
			`entry "a/../../x": leaves the archive`,
		},
		{
			"absolute", archive(t, launch(), file("/etc/x", 0o644, "")), artifact.ErrArchive,
			`entry "/etc/x": is an absolute path; allowed: relative paths inside it`,
		},
		{
			"link to absolute", archive(t, launch(), symlink("a", "/etc")), artifact.ErrArchive,
			`entry "a": symbolic link to the absolute path "/etc"; allowed: links with a relative target`,
		},
		{
			"link outside", archive(t, launch(), symlink("d/a", "../../etc")), artifact.ErrArchive,
			`entry "d/a": symbolic link to "../../etc", outside of the archive`,
		},
		{
			"link outside through a link",
			archive(t, launch(), dirEntry("a/b"), symlink("a/b/c", "../.."),
				symlink("y",
					"a/b/c/../x")), artifact.ErrArchive,
			`entry "y": symbolic link that does not resolve inside the archive`,
		},
		{
			"link loop", archive(t, launch(), symlink("a", "b"), symlink("b", "a")), artifact.ErrArchive,
			`entry "a": symbolic link that does not resolve`,
		},
		{
			"link without target", archive(t, launch(), symlink("a", "")), artifact.ErrArchive,
			`entry "a": is a symbolic link without a target`,
		},
		{
			"write through a link", archive(t, launch(), symlink("a", "bin"), file("a/x", 0o644, "")),
			artifact.ErrArchive,
			`entry "a/x": lies below "a", which is a symbolic link; allowed: paths below directories of the archive`,
		},
		{
			"write onto a link", archive(t, launch(), symlink("a", "bin/launch"), file("a", 0o644, "evil")),
			artifact.ErrArchive,
			`entry "a": is a regular file here and a symbolic link earlier in the archive; allowed: one type for each path`,
		},
		{
			"below a file", archive(t, launch(), file("bin/launch/x", 0o644, "")), artifact.ErrArchive,
			`lies below "bin/launch", which is a regular file`,
		},
		{
			"directory becomes file", archive(t, launch(), file("bin", 0o644, "")), artifact.ErrArchive,
			`entry "bin": is a regular file here and a directory earlier`,
		},
		{
			"file becomes directory", archive(t, launch(), dirEntry("bin/launch/")), artifact.ErrArchive,
			`entry "bin/launch/": is a directory here and a regular file earlier`,
		},
		{
			"hard link outside", archive(t, launch(), hardlink("a", "../../etc/passwd")), artifact.ErrArchive,
			`entry "a": hard link to "../../etc/passwd"; allowed: links to regular files that come earlier`,
		},
		{
			"hard link to absolute", archive(t, launch(), hardlink("a", "/etc/passwd")), artifact.ErrArchive,
			`entry "a": hard link to "/etc/passwd"`,
		},
		{
			"hard link through a link", archive(t, launch(), symlink("b", "bin"), hardlink("a", "b/launch")),
			artifact.ErrArchive, `entry "a": hard link to "b/launch"`,
		},
		{
			"hard link to itself", archive(t, launch(), hardlink("bin/launch", "bin/launch")), artifact.ErrArchive,
			`hard link to itself`,
		},
		{
			"character device", archive(t, launch(), special("null", tar.TypeChar)), artifact.ErrArchive,
			`entry "null": is a character device; allowed: regular files, directories, symbolic and hard links`,
		},
		{
			"block device", archive(t, launch(), special("sda", tar.TypeBlock)), artifact.ErrArchive,
			`entry "sda": is a block device`,
		},
		{
			"fifo", archive(t, launch(), special("pipe", tar.TypeFifo)), artifact.ErrArchive,
			`entry "pipe": is a named pipe`,
		},
		{
			"setuid", archive(t, file("bin/launch", 0o4755, "")), artifact.ErrArchive,
			`entry "bin/launch": mode 4755 has setuid, setgid or sticky bits; allowed: modes up to 0777`,
		},
		{"setgid", archive(t, file("bin/launch", 0o2755, "")), artifact.ErrArchive, `mode 2755`},
		{"sticky", archive(t, file("bin/launch", 0o1755, "")), artifact.ErrArchive, `mode 1755`},
		{
			"path too long", archive(t, launch(), file(strings.Repeat("abc/", 300)+"x", 0o644, "")),
			artifact.ErrArchive,
			`path of 1201 bytes; allowed: at most 1024 bytes`,
		},
		{
			"name too long", archive(t, launch(), file(strings.Repeat("a", 256), 0o644, "")), artifact.ErrArchive,
			`file name of 256 bytes; allowed: at most 255 bytes`,
		},
		{
			"endless name", archive(t, launch(), file("/"+strings.Repeat("ä", 400_000), 0o644, "")),
			artifact.ErrArchive,
			`"...: is an absolute path`,
		},
		{
			"endless name of a short path",
			archive(t, launch(), file(strings.Repeat("./", 400_000)+"bin/launch/x", 0o644,
				"")), artifact.ErrArchive, `lies below "bin/launch"`,
		},
		{
			"endless target", archive(t, launch(), hardlink("a", strings.Repeat("x", 900_000))), artifact.ErrArchive,
			`"...; allowed: links to regular files that come earlier`,
		},
		{
			"too many entries", archive(t, many...), artifact.ErrTooLarge,
			`entry "d/": is number 101; allowed: at most 100 files, directories and links`,
		},
		{"too many implied directories", archive(t, launch(), file(strings.Repeat("a/", 60)+"x", 0o644, ""),
			file(strings.Repeat("b/", 60)+"x", 0o644, "")), artifact.ErrTooLarge, `allowed: at most 100 files`},
		{
			"file too large", archive(t, launch(), file("big", 0o644, strings.Repeat("\x00", 1<<20+1))),
			artifact.ErrTooLarge,
			`entry "big": with its 1048577 bytes the archive unpacks to more than the limit; allowed: at most 1048576 bytes unpacked`,
		},
		{
			"zeros after the end", compress(t, append(tarball(t, launch()), make([]byte, 2<<20)...)),
			artifact.ErrTooLarge,
			`tar stream of more than 1048576 bytes`,
		},
		{
			"sparse bomb", sparse(t, "hole", "1099511627776"), artifact.ErrTooLarge,
			`entry "hole": with its 1099511627776 bytes the archive unpacks to more`,
		},
		{"not gzip", []byte("hello"), artifact.ErrArchive, `allowed: a complete gzip-compressed tar archive`},
		{"empty", nil, artifact.ErrArchive, `read gzip header`},
		{"not tar", compress(t, bytes.Repeat([]byte("x"), 2048)), artifact.ErrArchive, `read the next entry`},
		{"gzip truncated", good[:len(good)-4], artifact.ErrArchive, `unexpected EOF; allowed: a complete gzip`},
		{"tar truncated in a header", compress(t, tarball(t, launch())[:300]), artifact.ErrArchive, `unexpected EOF`},
		{
			"tar truncated in a file", compress(t, tarball(t, launch(), file("x", 0o644, "content"))[:1538]),
			artifact.ErrArchive, `entry "x": unexpected EOF`,
		},
		{
			"tar truncated between entries", compress(t, tarball(t, launch())[:1024]), artifact.ErrArchive,
			`no end-of-archive marker: it was cut off`,
		},
		{"garbage after gzip", append(bytes.Clone(good), "garbage"...), artifact.ErrArchive, `read the archive's end`},
		{
			"data after tar", compress(t, append(tarball(t, launch()), "data"...)), artifact.ErrArchive,
			`data after the end of the tar archive`,
		},
		{"bad checksum", flip(good, len(good)-6), artifact.ErrArchive, `invalid checksum`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, dir := newStore(t, artifact.Config{MaxFiles: 100, MaxUnpackedBytes: 1 << 20})
			a := fileArtifact(t, tt.data)
			_, err := s.Ensure(t.Context(), a)
			wantError(t, err, tt.is, "artifact "+a.URL+": ", tt.want)
			if text := err.Error(); len(text) > 2048 || !utf8.ValidString(text) {
				t.Errorf("an error of %d bytes: %.300s", len(text), text)
			}
			wantEmpty(t, dir)
		})
	}
}

func flip(data []byte, at int) []byte {
	out := bytes.Clone(data)
	out[at] ^= 0xff
	return out
}

// No archive changes anything outside of its directory, and no link leads out of its tree.
func TestUnpackNeverLeavesItsTree(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "b", "a/b", "a/b/c", "a/c", "b/a", "../x", "a/../../x", "./a", "bin"})
	target := rapid.SampledFrom([]string{
		"a", "b", "..", "../..", "a/b", "../x", "b/..", "a/b/..", "c/../..",
		"../sentinel", "/etc",
	})
	rapid.Check(t, func(rt *rapid.T) {
		base := tempDir(t)
		sentinel := filepath.Join(base, "sentinel")
		if err := os.WriteFile(sentinel, []byte("kept"), 0o600); err != nil {
			rt.Fatal(err)
		}
		entries := []entry{launch()}
		for range rapid.IntRange(1, 8).Draw(rt, "entries") {
			n, to := name.Draw(rt, "name"), target.Draw(rt, "target")
			entries = append(entries, rapid.SampledFrom([]entry{
				file(n, 0o644, "evil"), dirEntry(n + "/"), symlink(n, to), hardlink(n, to),
			}).Draw(rt, "entry"))
		}
		s, err := artifact.New(artifact.Config{Dir: filepath.Join(base, "store")})
		if err != nil {
			rt.Fatal(err)
		}
		data := archive(t, entries...)
		path := filepath.Join(base, "a.tar.gz")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			rt.Fatal(err)
		}
		dir, err := s.Ensure(t.Context(), manifest.Artifact{Kind: "tar", URL: "file://" + path, SHA256: digestOf(data)})
		if content, readErr := os.ReadFile(sentinel); readErr != nil || string(content) != "kept" {
			rt.Fatalf("the file outside: %q, %v", content, readErr)
		}
		if got, _ := os.ReadDir(base); len(got) != 3 {
			rt.Fatalf("written outside of the store: %v", got)
		}
		if err != nil {
			if !errors.Is(err, artifact.ErrArchive) {
				rt.Fatalf("refused with %v, want ErrArchive", err)
			}
			return
		}
		checkInside(rt, dir)
	})
}

func checkInside(rt *rapid.T, dir string) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		rt.Fatal(err)
	}
	err = filepath.Walk(dir, func(p string, info os.FileInfo, err error) error {
		if err != nil || info.Mode()&os.ModeSymlink == 0 {
			return err
		}
		to, err := filepath.EvalSymlinks(p)
		if err == nil && to != real && !strings.HasPrefix(to, real+"/") {
			rt.Fatalf("link %s leads to %s", p, to)
		}
		return nil
	})
	if err != nil {
		rt.Fatal(err)
	}
}
