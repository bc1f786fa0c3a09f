// Package report writes this node's state to Consul: the realities of its pods, then the orphans, then the node's
// record. Farms trust the record because the other two were written before it.
package report

import (
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Board has the realities of the node's pods as last observed. It is safe for concurrent use.
type Board struct {
	// Changed is raised when there is something to write.
	Changed wait.Signal

	mu    sync.Mutex
	lines map[pod.Identity]*line
	told  Intents
}

type line struct {
	reality *pod.Reality // as last observed; nil: nothing to report
	at      time.Time    // when reality last changed
	since   bool         // the state began under this preparer, so Since is right
	ended   time.Time    // time of the LastExit that Count counted last
	// restarts is reality.Restarts at the last Count; negative: not counted yet
	restarts int
	erase    bool // the reality in Consul is not needed any more
	erased   bool // erase is set, and Consul does not have the reality
}

// Intents is what the writer of realities must know about the intents.
type Intents struct {
	Stops map[pod.Identity]uint64 // indices of the intents that make a pod unavailable for the minimum
	// Named has the pods with an intent, even one that cannot be parsed, and the pods that the node knows. Realities of
	// other stopped pods are deleted. Nil: not known.
	Named map[pod.Identity]bool
}

// NewBoard returns an empty board.
func NewBoard() *Board {
	return &Board{Changed: wait.NewSignal(), lines: map[pod.Identity]*line{}}
}

// line adds a missing line. The caller holds b.mu.
func (b *Board) line(id pod.Identity) *line {
	l := b.lines[id]
	if l == nil {
		l = &line{restarts: -1}
		b.lines[id] = l
	}
	return l
}

// SetIntents replaces what is known about the intents.
func (b *Board) SetIntents(told Intents) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = told
}

// Erase has the pod's reality deleted from Consul.
func (b *Board) Erase(id pod.Identity) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.line(id)
	l.reality = nil
	b.setErase(l, true)
}

// Silence removes the reality from the board, and has Consul keep the one that it has.
func (b *Board) Silence(id pod.Identity) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.line(id)
	l.reality = nil
	b.setErase(l, false)
}

// Keep takes Erase back. Say gives the board the reality to write.
func (b *Board) Keep(id pod.Identity) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setErase(b.line(id), false)
}

// setErase is for callers that hold b.mu.
func (b *Board) setErase(l *line, erase bool) {
	if l.erase != erase {
		l.erase, l.erased = erase, false
		b.Changed.Raise()
	}
}

// Erased reports whether Consul has no reality of the pod any more, after Erase.
func (b *Board) Erased(id pod.Identity) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lines[id]
	return l != nil && l.erased
}

// Forget removes a pod from the board.
func (b *Board) Forget(id pod.Identity) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lines, id)
}

// Reality returns the last observed reality of a pod.
func (b *Board) Reality(id pod.Identity) (r pod.Reality, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.lines[id]; l != nil && l.reality != nil {
		return *l.reality, true
	}
	return pod.Reality{}, false
}

// crashReportEvery is the shortest time between reports of a crash-looping pod with a new last exit.
const crashReportEvery = 10 * time.Second

// Say stores a reality to be written to Consul. news: its state or availability has changed. If a crash-looping pod has
// only a new last exit, Say may store nothing and return when to call it again; zero: not needed.
func (b *Board) Say(r pod.Reality, now time.Time) (news bool, again time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.line(r.Identity)
	r.Since = now.Round(0).UTC()
	if last := l.reality; last != nil {
		if until := l.at.Add(crashReportEvery); now.Before(until) && loopsOn(*last, r) {
			return false, until
		}
		if last.State == r.State {
			r.Since = last.Since
		}
		if sameReality(*last, r) {
			return false, time.Time{}
		}
		l.since = l.since || last.State != r.State
		news = last.State != r.State || last.Available != r.Available
	}
	l.reality, l.at = &r, now
	b.Changed.Raise()
	return news, time.Time{}
}

func loopsOn(last, r pod.Reality) bool {
	r.Restarts, r.LastExit, r.Message, r.LogTail = last.Restarts, last.LastExit, last.Message, last.LogTail
	return last.State == pod.StateCrashLooping && sameReality(last, r)
}

// Count returns how many pods are in each state, and since the last call: the restarts, the exits because memory ran
// out (starved), and the exits because the health check failed (hung).
func (b *Board) Count() (states map[pod.State]int, restarts, starved, hung int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	states = map[pod.State]int{}
	for _, l := range b.lines {
		if l.reality == nil {
			continue
		}
		states[l.reality.State]++
		if l.restarts >= 0 {
			restarts += max(0, l.reality.Restarts-l.restarts) // a new version of the pod starts again at zero
			if exit := l.reality.LastExit; exit != nil && exit.At.After(l.ended) {
				if exit.OutOfMemory {
					starved++
				}
				if exit.Reason != "" {
					hung++
				}
			}
		}
		l.restarts = l.reality.Restarts
		if l.reality.LastExit != nil {
			l.ended = l.reality.LastExit.At
		}
	}
	return states, restarts, starved, hung
}

// due returns the realities that differ from Consul. If a pod was in its state already when this preparer first
// observed it, the reality keeps the Since that Consul has.
func (b *Board) due(stored map[pod.Identity]store.Rec[pod.Reality]) []pendingWrite {
	b.mu.Lock()
	defer b.mu.Unlock()
	var writes []pendingWrite
	for id, l := range b.lines {
		rec, found := stored[id]
		if found && l.reality != nil && !l.since && rec.Value.State == l.reality.State {
			l.reality.Since = rec.Value.Since
		}
		switch {
		case l.erase && !found:
			l.erased = true
		case l.erase:
			writes = append(writes, pendingWrite{id: id, erase: true})
		case l.reality != nil && !(found && sameReality(rec.Value, *l.reality)):
			writes = append(writes, pendingWrite{id: id, reality: *l.reality, stop: b.told.Stops[id]})
		}
	}
	if b.told.Named == nil {
		return writes
	}
	for id, rec := range stored {
		// The node does not know the pod, for example after its disk was replaced.
		if b.lines[id] == nil && !b.told.Named[id] && rec.Value.State == pod.StateStopped {
			writes = append(writes, pendingWrite{id: id, erase: true})
		}
	}
	return writes
}

// sameReality ignores Since.
func sameReality(a, b pod.Reality) bool {
	if (a.LastExit == nil) != (b.LastExit == nil) {
		return false
	}
	if a.LastExit != nil {
		x, y := *a.LastExit, *b.LastExit
		if !x.At.Equal(y.At) {
			return false
		}
		if y.At = x.At; x != y {
			return false
		}
	}
	a.LastExit, b.LastExit = nil, nil
	a.Since = b.Since
	return a == b
}
