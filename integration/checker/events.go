package checker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
)

// Event is a fact that Consul's log does not show.
type Event struct {
	At   int64  `json:"at"` // unix nanoseconds, by the clock that the servers use too
	Kind string `json:"kind"`

	// EventNode: a simulated node has just carried out an intent. EventEnd: the node runs the pod at the end of the
	// run. EventLost: the machine died with all its pods and all that the node knew. EventLeak: the run is about to
	// give the identity a claim without a pod. EventSelf: the machine has just stopped the pod because of
	// disconnect.stop_after; Call is when the node lost contact, by its own account.
	Node     string         `json:"node,omitempty"`
	ID       string         `json:"id,omitempty"` // <rc-id>/<role>.<index>
	State    string         `json:"state,omitempty"`
	Digest   string         `json:"digest,omitempty"`
	Revision int64          `json:"revision,omitempty"`
	Ports    map[string]int `json:"ports,omitempty"`
	// Once: the pod must not start on a second node.
	Once bool `json:"once,omitempty"`

	// EventMachine: from Call to At the run disturbed the machine of the Consul agent Node, or, if Node is empty, the
	// servers. Farms may take the machine for lost.

	// EventSnapshot and EventRestore: the snapshot's Raft index; a restore lasts from Call to At. EventWipe: from Call
	// on operators delete everything; at At the desired records are back.
	Index uint64 `json:"index,omitempty"`
	Call  int64  `json:"call,omitempty"`

	Lock *LockOp `json:"lock,omitempty"` // EventLock
}

// The kinds of events.
const (
	EventNode     = "node"
	EventEnd      = "end"
	EventLost     = "lost"
	EventLeak     = "leak"
	EventSelf     = "self"
	EventMachine  = "machine"
	EventSnapshot = "snapshot"
	EventRestore  = "restore"
	EventWipe     = "wipe"
	EventLock     = "lock"
)

// ReadEvents reads a file of events, one on each line.
func ReadEvents(path string) ([]Event, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHarness, err)
	}
	var out []Event
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%w: event %d: %w", ErrHarness, len(out)+1, err)
		}
		out = append(out, e)
	}
	return out, lines.Err()
}

func ofKind(events []Event, kinds ...string) []Event {
	out := slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return !slices.Contains(kinds, e.Kind) })
	slices.SortStableFunc(out, func(a, b Event) int { return int(a.At - b.At) })
	return out
}

type restores struct {
	wanted map[uint64]bool // index of a snapshot that was restored
	saved  map[uint64]*state
	order  []Event // EventRestore, also attempts that failed
}

func newRestores(events []Event) *restores {
	r := &restores{wanted: map[uint64]bool{}, saved: map[uint64]*state{}, order: ofKind(events, EventRestore)}
	for _, e := range r.order {
		r.wanted[e.Index] = true
	}
	return r
}

func (r *restores) keep(index uint64, s *state) {
	if r.wanted[index] {
		r.saved[index] = s.clone()
	}
}

// match finds the restore that made the gap between two entries: the last attempt before the second entry was appended,
// because earlier ones failed without effect. It returns the snapshot's index and state.
func (r *restores) match(last, next *Entry) (uint64, *state, error) {
	if next.Index != last.Index+2 {
		return 0, nil, fmt.Errorf("%w: the log lacks the entries between %d and %d", ErrHarness, last.Index, next.Index)
	}
	for i, attempt := range slices.Backward(r.order) {
		if attempt.Call > next.At || attempt.At < last.At {
			continue
		}
		index := attempt.Index
		r.order = r.order[i+1:]
		if saved := r.saved[index]; saved != nil {
			return index, saved, nil
		}
		return 0, nil, fmt.Errorf("%w: the snapshot at index %d was restored, which the log does not reach", ErrHarness,
			index)
	}
	return 0, nil, fmt.Errorf("%w: index %d is missing and nobody restored a snapshot then", ErrHarness, last.Index+1)
}

// FinalKey is one key as Consul showed it at the end.
type FinalKey struct {
	Key         string
	Value       []byte
	ModifyIndex uint64
	Session     string
}

// Final is what Consul held when everything had come to rest.
type Final struct {
	Index uint64 // of the last entry of the Raft log at that time; later entries are not judged
	Keys  []FinalKey
}

func readFinal(path string) (Final, error) {
	var f Final
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return f, fmt.Errorf("%w: %w", ErrHarness, err)
	}
	return f, nil
}

// equals proves the replay: it must have the same keys, versions and locks as Consul.
func (s *state) equals(final []FinalKey) error {
	seen := map[string]bool{}
	for i := range final {
		f := &final[i]
		seen[f.Key] = true
		k := s.get(f.Key)
		if k == nil || k.Index != f.ModifyIndex || k.Session != f.Session || !bytes.Equal(k.Value, f.Value) {
			return fmt.Errorf("the servers ended with %s at index %d, the replay of its log with %+v", f.Key,
				f.ModifyIndex, k)
		}
	}
	for _, g := range s.groups {
		for key := range g {
			if !seen[key] {
				return fmt.Errorf("the replay ended with %s, which the servers do not have", key)
			}
		}
	}
	return nil
}
