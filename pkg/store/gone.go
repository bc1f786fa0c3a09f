package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Gone is the record at gone: how long leaders have seen nodes dead.
type Gone struct {
	_     struct{}         `feature:"forget-nodes"`
	Nodes map[string]Death `json:"nodes,omitempty"` // by name
}

// Death is one death of a node.
type Death struct {
	Index uint64    `json:"index"` // of the node's record after this death; another index means another death
	Since time.Time `json:"since"` // when a leader first saw the death, by the leader's clock; only for people
	// SeenMS is how long all leaders together have seen the node dead, in milliseconds of their monotonic clocks.
	SeenMS int64 `json:"seen_ms,omitempty"`
}

// Seen is SeenMS.
func (d Death) Seen() time.Duration { return time.Duration(d.SeenMS) * time.Millisecond }

// ReadGone reads the dead nodes. A missing or unreadable record is empty.
func (l *Leader) ReadGone(ctx context.Context) (Rec[Gone], error) {
	return l.Gone.present(ctx)
}

// WriteGone returns ErrConflict if the record has changed. Without dead nodes it deletes the key.
func (l *Leader) WriteGone(ctx context.Context, rec Rec[Gone]) error {
	next := &rec.Value
	if len(next.Nodes) == 0 {
		next = nil
	}
	return l.write(ctx, l.keys.Gone.Key(), replaceOp(l.keys.Gone.Key(), next, rec.Index))
}

// LeftOn counts what the store still has about a node's pods.
type LeftOn struct {
	Reservation uint64 // index of the record; zero: there is none
	Claims      int
	Copies      int // pods that are placed on the node, and ghosts on the node
	Intents     int
	Reports     int   // of pods that have not stopped
	Unreadable  error // a record that may be about the node cannot be read
}

// None reports whether the store knows no pod that may run on the node.
func (l *LeftOn) None() bool {
	return l.Copies+l.Claims+l.Intents+l.Reports == 0 && l.Unreadable == nil
}

// LeftOn reads what the store has about nodes' pods. It reads reservations first, because placing a pod changes its
// node's reservation.
func (s *db) LeftOn(ctx context.Context, names []string) (map[string]LeftOn, error) {
	found, err := s.c.GetMany(ctx, s.keys.Reservations.Keys(names), consul.Consistent)
	if err != nil {
		return nil, err
	}
	reserved, unreadable := s.taken(found, names)
	placed, corrupt, err := s.Pods.List(ctx, consul.Consistent)
	if err != nil {
		return nil, err
	}
	copies := map[string]int{}
	for i := range placed {
		copies[placed[i].Value.Node]++
		for _, g := range placed[i].Value.Ghosts {
			copies[g.Node]++
		}
	}
	left := make(map[string]LeftOn, len(names))
	for _, name := range names {
		l := LeftOn{Reservation: reserved[name].Index, Claims: len(reserved[name].Value.Claims), Copies: copies[name]}
		l.Unreadable = errors.Join(append(corrupt, unreadable[name])...)
		if err := s.countBelow(ctx, name, &l); err != nil {
			return nil, err
		}
		left[name] = l
	}
	return left, nil
}

func (s *db) countBelow(ctx context.Context, name string, l *LeftOn) error {
	intents, reports := s.keys.Intents.Below(name), s.keys.Realities.Below(name)
	_, below, err := s.c.Read(ctx, consul.Reading{Prefixes: []string{intents, reports}}, consul.Consistent)
	if err != nil {
		return err
	}
	for _, p := range below {
		if strings.HasPrefix(p.Key, intents) {
			l.Intents++
			continue
		}
		if rec, err := s.Realities.decode(p); err != nil || rec.Value.State != pod.StateStopped {
			l.Reports++
		}
	}
	return nil
}

// RemoveNode is Operator.RemoveNode. If it failed, the next look finds the node again.
func (l *Leader) RemoveNode(ctx context.Context, r NodeRemoval) error {
	_, err := l.fenced(ctx, append(l.removeNodeOps(r), l.audit(r.Audit)))
	return err
}
