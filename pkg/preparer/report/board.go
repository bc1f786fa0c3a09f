// Package report tells Consul of this node: what came of its pods, what runs on it without an intent, and the node's record, in that order where
// one follows from the other. It knows pods only by what is to be said of them.
package report

import (
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Board is what the node has to say of its pods, and what of that Consul need not keep any more.
type Board struct {
	// Changed is raised when there is something to write.
	Changed wait.Signal

	mu    sync.Mutex
	lines map[pod.Identity]*line
	told  Told
}

// line is about one pod.
type line struct {
	reality  *pod.Reality // as last observed; nil when there is nothing to report
	at       time.Time    // when it last changed
	since    bool         // its state was entered under this process, so Since is right
	ended    time.Time    // LastExit of what was counted
	restarts int          // how many of those in reality were counted; negative: none was looked at, as after a restart of ours
	erase    bool         // the stored reality has served its purpose
	erased   bool         // and Consul does not have it any more
}

// Told is what intents, as they are known now, say of realities.
type Told struct {
	Stops map[pod.Identity]uint64 // indices of the intents after which a pod counts for no minimum
	// Named are the pods that have an intent, or one that cannot be understood, and those that the node knows. The realities of others that
	// are stopped concern nobody. Nil: nobody knows.
	Named map[pod.Identity]bool
}

// NewBoard returns one that says nothing.
func NewBoard() *Board {
	return &Board{Changed: wait.NewSignal(), lines: map[pod.Identity]*line{}}
}

// line returns that of a pod. The caller holds b.mu.
func (b *Board) line(id pod.Identity) *line {
	l := b.lines[id]
	if l == nil {
		l = &line{restarts: -1}
		b.lines[id] = l
	}
	return l
}

// Tell takes in what the intents say.
func (b *Board) Tell(told Told) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = told
}

// Erase says whether the stored reality of a pod has served its purpose, and whether there is nothing to report about the pod.
func (b *Board) Erase(id pod.Identity, erase, silent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.line(id)
	if silent {
		l.reality = nil
	}
	if l.erase != erase {
		l.erase, l.erased = erase, false
		b.Changed.Raise()
	}
}

// Erased reports whether Consul does not have the reality of a pod any more that has served its purpose.
func (b *Board) Erased(id pod.Identity) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lines[id]
	return l != nil && l.erased
}

// Forget drops all about a pod that the node does not know any more.
func (b *Board) Forget(id pod.Identity) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lines, id)
}

// Reality returns what is said of a pod; ok is false for nothing.
func (b *Board) Reality(id pod.Identity) (r pod.Reality, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.lines[id]; l != nil && l.reality != nil {
		return *l.reality, true
	}
	return pod.Reality{}, false
}

// crashReportEvery is how often a pod that stays crash-looping is reported, however often it is started.
const crashReportEvery = 10 * time.Second

// Say puts a reality in line for writing if it says anything new, which news tells of a state or of availability. It returns when to come
// again, zero for not before there is something else: the pod was crash-looping before, and only how it ended last is new.
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

// loopsOn reports whether a pod was crash-looping, and only how it ended last is new.
func loopsOn(last, r pod.Reality) bool {
	r.Restarts, r.LastExit, r.Message, r.LogTail = last.Restarts, last.LastExit, last.Message, last.LogTail
	return last.State == pod.StateCrashLooping && sameReality(last, r)
}

// Count returns how many pods are in each state, and how many restarts there were since it was last called, and last
// ends for want of memory, and for a health check that failed.
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
			restarts += max(0, l.reality.Restarts-l.restarts) // a new version of the pod counts from zero again
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

// due returns what differs from what Consul has. A pod that was in its state before this process observed it keeps the
// time since when: the preparer was restarted, and its first look at the pod may come after the list of realities.
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
		// The node forgot the pod along with its disk; that it was stopped concerns nobody any more.
		if b.lines[id] == nil && !b.told.Named[id] && rec.Value.State == pod.StateStopped {
			writes = append(writes, pendingWrite{id: id, erase: true})
		}
	}
	return writes
}

// sameReality reports whether two realities say the same. Since is left out: it belongs to the state.
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
