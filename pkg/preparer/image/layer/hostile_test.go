package layer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/preparer/image/layer"
)

// ending is a context that ends when it was asked several times.
type ending struct {
	context.Context
	asked, most int
}

func (e *ending) Err() error {
	if e.asked++; e.asked > e.most {
		return context.Canceled
	}
	return nil
}

// A sparse file can have few bytes in the archive, and many on the disk.
func TestCancelledInASparseFile(t *testing.T) {
	const holes = "GNU.sparse."
	entry := imagetest.File("big", strings.Repeat("x", 512))
	stream := imagetest.Tar(t, entry)
	// archive/tar writes no sparse files, so the records of PAX are written as the content of another entry.
	records := ""
	for _, record := range []string{
		"22 " + holes + "major=0\n", "22 " + holes + "minor=1\n", "28 " + holes + "size=67108864\n",
		"26 " + holes + "numblocks=1\n", "24 " + holes + "map=0,512\n",
	} {
		records += record
	}
	pax := imagetest.Tar(t, imagetest.File("pax", records))
	pax = pax[:len(pax)-1024]
	pax[156] = tar.TypeXHeader
	checksum(pax[:512])
	stream = append(pax, stream...)
	dir := t.TempDir()
	limits := layer.Limits{Bytes: 1 << 30, Entries: 10, Room: &archive.Room{Dir: dir}}
	ctx := &ending{Context: t.Context(), most: 20}
	_, err := layer.Unpack(ctx, bytes.NewReader(stream), dir, nil, limits)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, "big")); err != nil || info.Size() > 8<<20 {
		t.Errorf("after the context has ended: %v, %v", info, err)
	}
}

// checksum writes the checksum of a header.
func checksum(header []byte) {
	copy(header[148:], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:], []byte{
		byte('0' + sum>>15&7), byte('0' + sum>>12&7), byte('0' + sum>>9&7), byte('0' + sum>>6&7), byte('0' + sum>>3&7),
		byte('0' + sum&7), 0, ' ',
	})
}

// Whiteouts in a deep directory above many layers need one system call for each layer, not one for each layer and part
// of the path. With the latter, this took more than a minute.
func TestDeepWhiteoutsAboveManyLayers(t *testing.T) {
	base, deep := t.TempDir(), strings.Repeat("d/", 60)
	var below []string
	for i := range 127 {
		dir := filepath.Join(base, strconv.Itoa(i))
		if err := os.MkdirAll(filepath.Join(dir, deep), 0o755); err != nil {
			t.Fatal(err)
		}
		below = append(below, dir)
	}
	var whiteouts []entry
	for i := range 1000 {
		whiteouts = append(whiteouts, file(deep+".wh."+strconv.Itoa(i), ""))
	}
	dir, before := t.TempDir(), cpuTime(t)
	limits := layer.Limits{Bytes: 1 << 30, Entries: 2000, Room: &archive.Room{Dir: dir}}
	_, err := layer.Unpack(t.Context(), bytes.NewReader(imagetest.Tar(t, whiteouts...)), dir, below, limits)
	if took := cpuTime(t) - before; err != nil || took > 20*time.Second {
		t.Errorf("it took %s of CPU time: %v", took, err)
	}
}

// cpuTime returns how long this process has used a CPU, which does not depend on other programs.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
