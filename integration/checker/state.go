package checker

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Key is one version of a key. It never changes.
type Key struct {
	Name      string
	Value     []byte
	Flags     uint64
	Index     uint64 // modify index
	LockIndex uint64
	Session   string // the session that holds the key

	record  any  // decoded on first use; see records.go
	trusted *Key // if a hostile node wrote this version: the version before; nil: there was none
}

// HostileMark is in every value that a run writes as a hostile node, or to spoil a record. No reader may accept it, so
// the checker uses the version before.
const HostileMark = "written-by-a-hostile-node"

func (k *Key) hostile() bool { return bytes.Contains(k.Value, []byte(HostileMark)) }

// Change is one command's effect on a key; nil: the key does not exist.
type Change struct {
	Key           string
	Before, After *Key
}

// Write is one command that was carried out.
type Write struct {
	Index   uint64
	At      int64 // unix nanoseconds
	Ops     []Op  // of a transaction
	Changes []Change
	state   *state // after the command
}

// state is what Consul's servers hold.
type state struct {
	groups   map[string]map[string]*Key // by the part of the name up to the first slash below the prefix
	sessions map[string]session
	checks   map[checkName]check
	nodes    map[string]bool
	undo     []Change // changes of the command that is being carried out, latest last
}

func newState() *state {
	return &state{
		groups: map[string]map[string]*Key{}, sessions: map[string]session{},
		checks: map[checkName]check{}, nodes: map[string]bool{},
	}
}

func (s *state) clone() *state {
	c := newState()
	for name, group := range s.groups {
		c.groups[name] = maps.Clone(group)
	}
	c.sessions, c.checks, c.nodes = maps.Clone(s.sessions), maps.Clone(s.checks), maps.Clone(s.nodes)
	return c
}

// group returns a key's group, such as "pods".
func group(key string) string {
	rest, ours := strings.CutPrefix(key, prefix)
	if !ours {
		return ""
	}
	top, _, _ := strings.Cut(rest, "/")
	return top
}

func (s *state) get(key string) *Key { return s.groups[group(key)][key] }

func (s *state) put(key string, k *Key) {
	g := group(key)
	before := s.groups[g][key]
	if before == nil && k == nil {
		return
	}
	s.undo = append(s.undo, Change{Key: key, Before: before, After: k})
	s.raw(key, k)
}

func (s *state) raw(key string, k *Key) {
	g := group(key)
	if k == nil {
		delete(s.groups[g], key)
		return
	}
	if s.groups[g] == nil {
		s.groups[g] = map[string]*Key{}
	}
	s.groups[g][key] = k
}

func (s *state) apply(e *Entry) (*Write, error) {
	w := &Write{Index: e.Index, At: e.At, state: s}
	s.undo = nil
	if e.Kind != raftCommand || len(e.Data) == 0 {
		return w, nil
	}
	var err error
	switch e.Data[0] &^ ignorable {
	case typeRegister:
		var r registerRequest
		if err = decode(e.Data[1:], &r); err == nil {
			s.register(&r, e.Index)
		}
	case typeDeregister:
		var r deregisterRequest
		if err = decode(e.Data[1:], &r); err == nil {
			s.deregister(&r, e.Index)
		}
	case typeSession:
		var r sessionRequest
		if err = decode(e.Data[1:], &r); err == nil {
			s.sessionRequest(&r, e.Index)
		}
	case typeKVS:
		var r kvsRequest
		if err = decode(e.Data[1:], &r); err == nil && !s.op(&Op{Verb: r.Op, DirEnt: r.DirEnt}, e.Index) {
			s.rollback()
		}
	case typeTxn:
		var r txnRequest
		if err = decode(e.Data[1:], &r); err == nil {
			s.txn(&r, w)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: command at index %d: %w", ErrHarness, e.Index, err)
	}
	w.Changes = merge(s.undo)
	return w, nil
}

func (s *state) txn(r *txnRequest, w *Write) {
	for i := range r.Ops {
		if r.Ops[i].KV == nil {
			continue
		}
		w.Ops = append(w.Ops, *r.Ops[i].KV)
		if !s.op(r.Ops[i].KV, w.Index) {
			s.rollback()
			return
		}
	}
}

func (s *state) rollback() {
	for _, c := range slices.Backward(s.undo) {
		s.raw(c.Key, c.Before)
	}
	s.undo = nil
}

func merge(changes []Change) []Change {
	at := map[string]int{}
	var out []Change
	for _, c := range changes {
		if i, known := at[c.Key]; known {
			out[i].After = c.After
			continue
		}
		at[c.Key] = len(out)
		out = append(out, c)
	}
	return out
}

// op reports whether Consul would accept the operation.
func (s *state) op(op *Op, index uint64) bool {
	d := &op.DirEnt
	now := s.get(d.Key)
	switch op.Verb {
	case "set":
		s.set(d, now, index)
	case "cas":
		if (d.ModifyIndex == 0) != (now == nil) || now != nil && now.Index != d.ModifyIndex {
			return false
		}
		s.set(d, now, index)
	case "delete":
		s.put(d.Key, nil)
	case "delete-cas":
		if now != nil && now.Index != d.ModifyIndex {
			return false
		}
		s.put(d.Key, nil)
	case "delete-tree":
		s.deleteTree(d.Key)
	case "lock":
		return s.lock(d, now, index)
	case "unlock":
		if d.Session == "" || now == nil || now.Session != d.Session {
			return false
		}
		s.write(d, now, "", now.LockIndex, index)
	case "check-session":
		return now != nil && now.Session == d.Session
	case "check-index":
		return now != nil && now.Index == d.ModifyIndex
	case "check-not-exists":
		return now == nil
	case "get":
		return now != nil
	}
	return true
}

func (s *state) set(d *dirEntry, now *Key, index uint64) {
	owner := ""
	if now != nil {
		owner = now.Session
	}
	s.write(d, now, owner, d.LockIndex, index)
}

// write leaves a key that has the same value, flags and session already.
func (s *state) write(d *dirEntry, now *Key, owner string, lockIndex, index uint64) {
	if now != nil && now.LockIndex == lockIndex && now.Flags == d.Flags &&
		bytes.Equal(now.Value, d.Value) && now.Session == owner {
		return
	}
	k := &Key{Name: d.Key, Value: d.Value, Flags: d.Flags, Index: index, LockIndex: lockIndex, Session: owner}
	if now != nil && k.hostile() {
		k.trusted = now
		if now.hostile() {
			k.trusted = now.trusted
		}
	}
	s.put(d.Key, k)
}

func (s *state) lock(d *dirEntry, now *Key, index uint64) bool {
	if _, alive := s.sessions[d.Session]; !alive {
		return false
	}
	lockIndex := uint64(1)
	switch {
	case now == nil:
	case now.Session == d.Session:
		lockIndex = now.LockIndex
	case now.Session != "":
		return false
	default:
		lockIndex = now.LockIndex + 1
	}
	s.write(d, now, d.Session, lockIndex, index)
	return true
}

func (s *state) deleteTree(prefix string) {
	for _, g := range s.groups {
		for key := range g {
			if strings.HasPrefix(key, prefix) {
				s.put(key, nil)
			}
		}
	}
}
