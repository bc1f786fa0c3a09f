package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Gone is the record at gone: since when nobody holds the records of some nodes.
type Gone struct {
	_     struct{}         `feature:"forget-nodes"`
	Nodes map[string]Death `json:"nodes,omitempty"` // by name
}

// Death is one time that a node's preparer has gone away.
type Death struct {
	Index uint64    `json:"index"` // of the node's record since: another one is another death
	Since time.Time `json:"since"` // when a leader saw it first, by its clock; for people
	// SeenMS is for how long leaders have seen it gone, all together, each by the clock that nobody sets, in milliseconds.
	SeenMS int64 `json:"seen_ms,omitempty"`
}

// Seen is for how long leaders have seen the node gone.
func (d Death) Seen() time.Duration { return time.Duration(d.SeenMS) * time.Millisecond }

// ReadGone reads since when nodes are gone. A record that is missing or cannot be read is an empty one.
func (s *Leader) ReadGone(ctx context.Context) (Rec[Gone], error) {
	rec, err := s.Gone.Get(ctx, consul.Consistent)
	switch {
	case IsCorrupt(err):
		return Rec[Gone]{Index: rec.Index}, nil
	case errors.Is(err, ErrNotFound):
		return rec, nil
	default:
		return rec, err
	}
}

// WriteGone writes that, if it is as it was read; the key goes where no node is gone. It returns ErrConflict when it is not.
func (s *Leader) WriteGone(ctx context.Context, rec Rec[Gone]) error {
	next := &rec.Value
	if len(next.Nodes) == 0 {
		next = nil
	}
	_, err := s.fenced(ctx, []consul.Op{replaceOp(s.keys.Gone.Key(), next, rec.Index)})
	return conflictOn(err, s.keys.Gone.Key())
}

// LeftOn is what there is in the store of a node's pods.
type LeftOn struct {
	Reservation uint64 // index of the record; zero: there is none
	Claims      int
	Copies      int // placed there, or left there
	Intents     int
	Reports     int   // of pods that have not stopped
	Unreadable  error // something that may be about the node cannot be read
}

// None reports whether there is nothing: no pod that may run there.
func (l *LeftOn) None() bool {
	return l.Copies+l.Claims+l.Intents+l.Reports == 0 && l.Unreadable == nil
}

// LeftOn reads what there is of the pods of some nodes: what is reserved first, so that a pod that is placed there meanwhile changes that.
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

// countBelow counts a node's intents and reports.
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

// AgentGone reports whether a machine's Consul agent has failed or left, or is not known.
func (s *Leader) AgentGone(ctx context.Context, consulNode string) (bool, error) {
	return s.c.Catalog.AgentGone(ctx, consulNode)
}

// RemoveNode removes what Operator.RemoveNode does, in the name of the leader. What is refused, or of unknown outcome, the next look finds again.
func (s *Leader) RemoveNode(ctx context.Context, r NodeRemoval) error {
	_, err := s.fenced(ctx, append(s.removeNodeOps(r), s.audit(r.Audit)))
	return err
}
