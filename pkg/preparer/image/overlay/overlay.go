// Package overlay mounts the unpacked layers of an image as one tree, and finds out whether a file system allows that.
// It needs root.
package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
)

// ErrUnsupported means that overlay mounts do not work below a directory.
var ErrUnsupported = errors.New("overlay mounts do not work here; " +
	"use a data directory on an ext4, xfs or tmpfs volume, and a kernel with overlayfs")

// Layers are the directories of one mount.
type Layers struct {
	Lower []string // read-only, the highest first; at least one
	Upper string   // takes what is written; empty: the mount is read-only, and Lower has at least two
	Work  string   // empty directory in the file system of Upper, for the kernel
}

// Mount mounts the layers at target, without setuid bits and devices. It names the directories by open descriptors,
// because a mount has at most 4096 bytes of options: about 200 layers, wherever they lie.
func Mount(target string, layers Layers) (err error) {
	var open []*os.File
	defer func() {
		for _, f := range open {
			_ = f.Close()
		}
	}()
	name := func(dir string) string {
		f, openErr := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if openErr != nil {
			err = errors.Join(err, openErr)
			return ""
		}
		open = append(open, f)
		return "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	}
	lower := make([]string, len(layers.Lower))
	for i, dir := range layers.Lower {
		lower[i] = name(dir)
	}
	options := "lowerdir=" + strings.Join(lower, ":")
	if layers.Upper != "" {
		options += ",upperdir=" + name(layers.Upper) + ",workdir=" + name(layers.Work)
	}
	if err != nil {
		return fmt.Errorf("open layers: %w", err)
	}
	if err := unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount %d layers at %s: %w", len(layers.Lower), target, err)
	}
	return nil
}

// Probe tries an overlay mount below a directory, with a whiteout, an opaque directory and a write. It makes the mount
// in a mount namespace of its own, so nothing remains mounted even if the program is killed. Errors to test for:
// ErrUnsupported. Other errors are about the directory itself.
func Probe(dir string) error {
	return probe(dir, []string{"low/opaque", "high/opaque", "upper", "work", "merged"},
		[]string{"low/hidden", "low/opaque/hidden", "low/kept", "high/opaque/kept"}, ErrUnsupported, try)
}

// probe makes directories and files, and calls try in a new mount namespace. Errors of try are also an is.
func probe(dir string, dirs, files []string, is error, try func(base string) error) (err error) {
	base, err := os.MkdirTemp(dir, "tmp-probe-")
	if err != nil {
		return fmt.Errorf("probe overlay mounts: %w", err)
	}
	defer func() { err = errors.Join(err, archive.RemoveTree(base)) }()
	for _, sub := range dirs {
		if err := os.MkdirAll(filepath.Join(base, sub), 0o755); err != nil {
			return fmt.Errorf("probe overlay mounts: %w", err)
		}
	}
	for _, file := range files {
		if err := os.WriteFile(filepath.Join(base, file), []byte("kept"), 0o644); err != nil {
			return fmt.Errorf("probe overlay mounts: %w", err)
		}
	}
	if err := Apart(func() error { return try(base) }); err != nil {
		return fmt.Errorf("%s: %w: %w", dir, is, err)
	}
	return nil
}

// Apart calls do on a thread with a mount namespace of its own, which ends with the call.
func Apart(do func() error) (err error) {
	done := make(chan struct{})
	var run func()
	run = func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and with it the namespace
		if unix.Gettid() == unix.Getpid() {
			// The first thread of a process cannot end. While this goroutine has it, the next one gets another.
			defer runtime.UnlockOSThread()
			again := make(chan struct{})
			go func() {
				defer close(again)
				run()
			}()
			<-again
			return
		}
		defer close(done)
		if err = alone(); err == nil {
			err = do()
		}
	}
	go run()
	<-done
	return err
}

// alone gives the calling thread a mount namespace whose mounts others do not see.
func alone() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts in the namespace: %w", err)
	}
	return nil
}

// try makes the mount, and compares what it shows. It runs in a mount namespace of its own.
func try(base string) error {
	in := func(sub string) string { return filepath.Join(base, sub) }
	if err := unix.Mknod(in("high/hidden"), unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("make a whiteout: %w", err)
	}
	if err := unix.Setxattr(in("high/opaque"), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("make an opaque directory: %w", err)
	}
	layers := Layers{Lower: []string{in("high"), in("low")}, Upper: in("upper"), Work: in("work")}
	if err := Mount(in("merged"), layers); err != nil {
		return err
	}
	for _, file := range []string{"merged/kept", "merged/opaque/kept"} {
		if err := wantKept(in(file)); err != nil {
			return err
		}
	}
	for _, file := range []string{"merged/hidden", "merged/opaque/hidden"} {
		if _, err := os.Lstat(in(file)); !errors.Is(err, os.ErrNotExist) {
			return errors.Join(fmt.Errorf("%s is not hidden", file), err)
		}
	}
	if err := os.WriteFile(in("merged/kept"), []byte("changed"), 0o644); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return wantKept(in("low/kept")) // what is written goes to the upper layer
}

func wantKept(file string) error {
	content, err := os.ReadFile(file)
	if err == nil && string(content) != "kept" {
		err = fmt.Errorf("%s has another content", file)
	}
	return err
}
