package runit

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

// Between two looks at the records while somebody watches: short after a change, long when nothing happens. A notifier
// makes looking unnecessary; only a process that ends without a runsv is not seen by it.
const (
	shortGap  = 10 * time.Millisecond
	longGap   = 250 * time.Millisecond
	notifyGap = upkeep
)

// view is what was last read of the directory.
type view struct {
	notified bool       // a notifier is at work
	instance uint64     // in the upper half of every cursor; differs between runtimes
	reading  sync.Mutex // held while the directory is read

	mu         sync.Mutex
	entries    map[string]*entry
	pending    bool   // a stub is at work, of which nobody is notified
	version    uint32 // lower half of the cursor
	lastChange time.Time
	wake       chan struct{} // closed when somebody should look again at once
}

// entry is one service.
type entry struct {
	file    fileID // of the record that was read
	rec     record
	err     error         // it cannot be read: nothing is known and nothing may be done
	process *proc.Process // what runs, as far as the record says; nil: nothing
	alive   bool          // it does, or its runsv has not said yet that it does not
	execed  bool          // its stub has become the program
	status  runtime.Status
}

// fileID tells one content of a record from another: each is a file of its own.
type fileID struct {
	inode uint64
	size  int64
	mtime unix.Timespec
}

func identifyFile(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, err
	}
	return fileID{inode: st.Ino, size: st.Size, mtime: st.Mtim}, nil
}

func (v *view) init() {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	// Never zero: a cursor of zero means "at once".
	v.instance = uint64(binary.LittleEndian.Uint32(b[:])|1) << 32
	v.entries, v.wake, v.lastChange = map[string]*entry{}, make(chan struct{}), time.Now()
}

func (v *view) close() {
	v.reading.Lock()
	defer v.reading.Unlock()
	for _, e := range v.entries {
		e.release()
	}
}

// changed returns a channel that is closed by the next poke.
func (v *view) changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.wake
}

// poke lets all watches look again.
func (v *view) poke() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lastChange = time.Now()
	close(v.wake)
	v.wake = make(chan struct{})
}

// bump counts as a change of everything.
func (v *view) bump() {
	v.mu.Lock()
	v.version++
	v.mu.Unlock()
	v.poke()
}

// gap returns how long to wait before the next look: the longer nothing has changed, the longer.
func (v *view) gap() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.pending:
		return shortGap
	case v.notified:
		return notifyGap
	default:
		return gapAfter(time.Since(v.lastChange))
	}
}

func gapAfter(unchanged time.Duration) time.Duration {
	const part = 16 // a change is seen later by at most this part of the time since the one before
	return min(max(unchanged/part, shortGap), longGap)
}

// list returns all states in the order of their ids, and the cursor that they belong to.
func (v *view) list() ([]runtime.Status, uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := []runtime.Status{}
	for _, id := range slices.Sorted(maps.Keys(v.entries)) {
		if e := v.entries[id]; !e.rec.Removed {
			list = append(list, e.status)
		}
	}
	return list, v.instance | uint64(v.version)
}

// records returns what can be read.
func (v *view) records() map[string]record {
	v.mu.Lock()
	defer v.mu.Unlock()
	recs := make(map[string]record, len(v.entries))
	for id, e := range v.entries {
		if e.err == nil {
			recs[id] = e.rec
		}
	}
	return recs
}

func (v *view) specs() []runtime.Spec {
	v.mu.Lock()
	defer v.mu.Unlock()
	specs := make([]runtime.Spec, 0, len(v.entries))
	for _, e := range v.entries {
		if e.err == nil {
			specs = append(specs, e.rec.Spec)
		}
	}
	return specs
}

// refresh reads what has changed in the directory.
func (r *Runtime) refresh() error {
	v := &r.view
	v.reading.Lock()
	defer v.reading.Unlock()
	services, err := r.dir.services()
	if err != nil {
		return err
	}
	next := make(map[string]*entry, len(services))
	changed, pending := false, false
	for _, s := range services {
		was := v.entries[s.id()]
		now := r.look(s, was)
		if now == nil {
			continue // it has gone meanwhile
		}
		next[s.id()] = now
		pending = pending || !now.settled()
		changed = changed || was == nil || was != now && differs(was, now)
		if now.err != nil && (was == nil || was.err == nil) {
			r.cfg.Log("record not readable", map[string]any{"process": s.id(), "error": now.err})
		}
	}
	for id, e := range v.entries {
		if next[id] == nil {
			changed = true
			e.release()
		} else if next[id].process != e.process {
			e.release()
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.entries, v.pending = next, pending
	if changed {
		v.version++
		v.lastChange = time.Now()
	}
	return nil
}

// notifyOf has changes of a service notified. Where that is not possible everything is looked at again and again.
func (r *Runtime) notifyOf(s service) {
	if r.notifier == nil {
		return
	}
	if err := r.notifier.add(string(s)); err != nil && !errors.Is(err, unix.ENOENT) {
		r.view.mu.Lock()
		r.view.notified = false
		r.view.mu.Unlock()
		r.cfg.Log("changes are not notified, but looked for", map[string]any{"error": err})
	}
}

func differs(a, b *entry) bool {
	return a.rec.Removed != b.rec.Removed || (a.err == nil) != (b.err == nil) || !reflect.DeepEqual(a.status, b.status)
}

func (e *entry) release() {
	if e.process != nil {
		e.process.Close()
	}
}

// look reads one service, as far as it differs from what was read before. Nothing new gives the same entry.
func (r *Runtime) look(s service, was *entry) *entry {
	file, err := identifyFile(s.path(recordName))
	if errors.Is(err, unix.ENOENT) && !s.exists() {
		return nil
	}
	known := was != nil && was.err == nil && err == nil && was.file == file
	if known && was.settled() {
		return was
	}
	now := &entry{file: file}
	if !known {
		r.notifyOf(s) // before it is read, so that no change is missed
	}
	if known {
		*now = *was
	} else if now.rec, now.err = s.load(); now.err != nil {
		return unknown(s, file, now.err)
	} else if now.rec.PID != 0 {
		if was != nil && was.process != nil && was.rec.run == now.rec.run {
			now.process, now.execed = was.process, was.execed
		} else if now.process, now.err = now.rec.find(r.boot); now.err != nil {
			return unknown(s, file, now.err)
		}
	}
	if now.process != nil {
		free := !s.busy() // the stub holds the lock until it has become the program
		ended := now.process.Exited()
		now.execed = now.execed || free && !ended
		now.alive = !ended || !s.quiet() // runsv and its stub are about to record how it ended
	}
	now.status = now.derive()
	return now
}

// unknown is a service of which nothing is known.
func unknown(s service, file fileID, err error) *entry {
	return &entry{file: file, err: err, status: runtime.Status{
		Spec: runtime.Spec{ID: s.id()}, Phase: runtime.Unknown, Message: err.Error() + "; " + s.byHand(),
	}}
}

// settled reports whether nothing but another record can change what is known.
func (e *entry) settled() bool {
	return e.process == nil || !e.alive || e.execed && !e.process.Exited()
}

// derive says what a client sees.
func (e *entry) derive() runtime.Status {
	rec := &e.rec
	st := runtime.Status{Spec: rec.Spec, Restarts: max(rec.Starts-1, 0), LastExit: rec.LastExit, Message: rec.Message}
	if e.alive {
		st.PID, st.StartedAt = rec.PID, rec.StartedAt
	}
	switch {
	case rec.Desired == wantStop && rec.PID == 0:
		st.Phase, st.Message = runtime.Stopped, ""
	case rec.Desired == wantStop:
		st.Phase = runtime.Stopping
	case e.alive && e.execed:
		st.Phase = runtime.Running
	case e.alive:
		st.Phase = runtime.Starting
	case rec.Done:
		st.Phase = runtime.Exited
	case rec.PID != 0:
		st.Phase, st.Message = runtime.Backoff, "ended"
	case rec.Message != "":
		st.Phase = runtime.Backoff
	default:
		st.Phase = runtime.Starting
	}
	return st
}
