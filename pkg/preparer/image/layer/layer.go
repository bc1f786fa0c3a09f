// Package layer unpacks layers of images into directories that overlay mounts can use as lower layers.
//
// A layer comes from strangers. So all that it contains is limited, its paths never leave the directory, and whiteouts
// of the archive become what overlayfs understands. Owners, modes with setuid bits and file capabilities are kept, so
// only root may reach the directory. The caller compares the DiffID with the image's before it uses the directory.
package layer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
	"github.com/rcfarm/rcfarm/pkg/internal/patience"
)

// maxWindow limits the memory of zstd. Compressors need an option for larger windows.
const maxWindow = 64 << 20

// allowed is what errors about the stream say.
const allowed = "a tar archive, plain or compressed with gzip or zstd"

// Limits bounds what one layer unpacks to.
type Limits struct {
	Bytes   int64 // of the tar stream, and of all files together
	Entries int   // files, directories, links and whiteouts
	Room    *archive.Room
}

// Result says what was unpacked.
type Result struct {
	DiffID  string // digest of the tar stream
	Bytes   int64  // on the disk, roughly
	Entries int

	// Dependent is set if the directory depends on the layers below: the archive has whiteouts, or entries before those
	// of the directories that they lie in. Such directories can be symbolic links below, and if they have no entry,
	// their owners and modes come from below. What was unpacked is not valid above other layers.
	Dependent bool
}

// Unpack unpacks a layer into an empty directory. below has the directories of the layers below, the highest first.
// Errors to test for: archive.ErrArchive, archive.ErrTooLarge, archive.ErrNoSpace, and the context's.
func Unpack(ctx context.Context, blob io.Reader, dir string, below []string, limits Limits) (res Result, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Result{}, fmt.Errorf("open the directory to unpack into: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if below, err = visible(below); err != nil {
		return Result{}, err
	}
	stream, closeStream, err := decompress(patience.WithContext(ctx, blob))
	if err != nil {
		return Result{}, err
	}
	defer closeStream()
	hash := sha256.New()
	u := &unpacker{
		root: root, below: below, limits: limits, kinds: map[string]byte{".": tar.TypeDir},
		dirs: map[string]attributes{".": plain}, opaque: map[string]bool{}, links: map[string]string{},
		merged: map[string][]string{},
	}
	if err := u.readAll(ctx, archive.Limit(io.TeeReader(stream, hash), limits.Bytes)); err != nil {
		return Result{}, err
	}
	if err := u.seal(); err != nil {
		return Result{}, err
	}
	return Result{
		DiffID: "sha256:" + hex.EncodeToString(hash.Sum(nil)), Bytes: u.occupied, Entries: u.entries,
		Dependent: u.dependent,
	}, nil
}

// decompress finds out how a layer is compressed by its first bytes, because media types are often wrong.
func decompress(blob io.Reader) (stream io.Reader, closeStream func(), err error) {
	r := bufio.NewReaderSize(blob, 64<<10)
	start, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, archive.ReadError("read the layer", err, allowed)
	}
	switch {
	case bytes.HasPrefix(start, []byte{0x1f, 0x8b}):
		zr, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, archive.ReadError("read the gzip header", err, allowed)
		}
		return zr, func() { _ = zr.Close() }, nil
	case bytes.Equal(start, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		zr, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, archive.ReadError("read the zstd header", err, allowed)
		}
		return zr, zr.Close, nil
	}
	return r, func() {}, nil
}

// readAll unpacks all entries, and reads the stream to its end, because the digest is of all of it.
func (u *unpacker) readAll(ctx context.Context, stream io.Reader) error {
	tr := tar.NewReader(stream)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return archive.ReadError("read the next entry", err, allowed)
		}
		if ctx.Err() != nil { // checked here too, because the data read already may have thousands of entries
			return patience.Ended(ctx)
		}
		// The holes of a sparse file are written without a read of the blob.
		if err := u.add(hdr, patience.WithContext(ctx, tr)); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return archive.ReadError("read the archive's end", err, allowed)
	}
	return nil
}

// attributes are what a directory gets when all entries are unpacked.
type attributes struct {
	mode     os.FileMode
	uid, gid int
	modified time.Time
}

// plain is for directories that neither the archive nor a layer below describes.
var plain = attributes{mode: 0o755}

// seal gives directories their owners, modes and times. While entries are added, directories are the node's own.
func (u *unpacker) seal() error {
	for name, a := range u.dirs {
		err := u.root.Lchown(name, a.uid, a.gid)
		if err == nil {
			err = u.root.Chmod(name, a.mode)
		}
		if err == nil {
			err = u.root.Chtimes(name, a.modified, a.modified)
		}
		if err != nil {
			return fmt.Errorf("finish directory %s: %w", archive.Quoted(name), err)
		}
	}
	return nil
}
