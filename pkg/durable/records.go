package durable

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxSpares is how many files wait to be written again: more than writers are busy at a time.
const maxSpares = 32

// Records replaces the files of one directory as WriteFile does, and writes into files that it has replaced before: the new
// content is exchanged with the old one, whose file is emptied and kept. So records that change often neither make nor delete
// files. That is the dear part of a small write where a file system looks for an inode that was not freed lately: on ext4
// without a journal it passes by all those that were, in each search. Spare files end with TempSuffix, and a crash leaves them.
//
// Its methods may be called by several goroutines at a time, for different names. A directory has one Records.
type Records struct {
	Dir     string
	Reserve *Reserve // for a full disk; may be nil

	mu       sync.Mutex
	spares   []string // paths of empty files
	unsynced []string // of files that were replaced, while it is not known to be durable
	made     int

	exchange func(a, b string) error // nil: the kernel's; a test has file systems that cannot
	sync     func(dir string) error  // nil: SyncDir
}

// WriteFile replaces the file of that name, readable by its owner only. When it returns nil the content survives a power
// failure.
func (r *Records) WriteFile(name string, data []byte) error {
	path := filepath.Join(r.Dir, name)
	return r.Reserve.orGive(r.write(path, data), path, data)
}

func (r *Records) write(path string, data []byte) error {
	spare := r.take()
	err := fill(spare, data)
	replaced := false
	if err == nil {
		replaced, err = r.place(spare, path)
	}
	if err != nil {
		return errors.Join(err, discard(spare)) // what failed once is not tried again
	}
	if replaced {
		r.mu.Lock()
		r.unsynced = append(r.unsynced, spare)
		r.mu.Unlock()
	}
	return r.settle()
}

// settle makes what was placed durable. Until then a power failure may want the old content of what was replaced.
func (r *Records) settle() error {
	r.mu.Lock()
	durable := r.unsynced
	r.unsynced = nil
	r.mu.Unlock()
	syncDir := r.sync
	if syncDir == nil {
		syncDir = SyncDir
	}
	if err := syncDir(r.Dir); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.unsynced = append(r.unsynced, durable...)
		return err
	}
	for _, spare := range durable {
		r.keep(spare)
	}
	return nil
}

// place puts the spare file at path. It reports whether the former file is now where the spare was.
func (r *Records) place(spare, path string) (replaced bool, err error) {
	if info, err := os.Lstat(path); err == nil && ours(info) {
		exchange := r.exchange
		if exchange == nil {
			exchange = renameExchange
		}
		if exchange(spare, path) == nil {
			return true, nil
		}
	}
	return false, os.Rename(spare, path) // there is none yet, or it is not ours to write again, or this file system cannot exchange
}

// ours reports whether a file may be written again once it is replaced: it is as fill makes them, and has no other name, such as
// a backup's.
func ours(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode() == mode && st.Nlink == 1 && int(st.Uid) == os.Geteuid()
}

func renameExchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// take returns the path of a spare file, or of one that is still to be made.
func (r *Records) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.spares); n > 0 {
		spare := r.spares[n-1]
		r.spares = r.spares[:n-1]
		return spare
	}
	r.made++
	return filepath.Join(r.Dir, ".spare-"+strconv.Itoa(r.made)+TempSuffix)
}

// keep empties a file that was replaced, for it may hold secrets and takes room, and keeps it for a later record.
func (r *Records) keep(spare string) {
	if os.Truncate(spare, 0) == nil && r.store(spare) {
		return
	}
	_ = discard(spare) // else a later start does it
}

func (r *Records) store(spare string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.spares) == maxSpares {
		return false
	}
	r.spares = append(r.spares, spare)
	return true
}
