package store

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// Audit says who changed what, at audit/<ulid>.
type Audit struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Who     string    `json:"who"`  // operator or farm id
	What    string    `json:"what"` // the act, such as "scale" or "reconcile"
	RCID    string    `json:"rc_id,omitempty"`
	Nodes   []string  `json:"nodes,omitempty"` // that it was about, sorted, as many as changes
	Changes []string  `json:"changes"`         // the difference, one line each
}

// MaxAuditChanges bounds the lines of one audit record; a last line says how many were left out. MaxAuditLine bounds each of them,
// in bytes of JSON, and MaxAuditBytes is more than all of a record takes.
const (
	MaxAuditChanges = 50
	MaxAuditLine    = 500
	MaxAuditBytes   = 48 * 1024
)

// NewAudit returns an audit record of now.
func NewAudit(who, what, rcID string, changes []string) Audit {
	more := max(0, len(changes)-MaxAuditChanges)
	changes = slices.Clone(changes[:len(changes)-more])
	for i := range changes {
		changes[i] = field.Cut(changes[i], MaxAuditLine)
	}
	return Audit{
		ID: NewID(), At: time.Now().UTC(), Who: field.Cut(who, MaxAuditLine), What: field.Cut(what, MaxAuditLine), RCID: rcID, Changes: changes,
	}.AndMore(more)
}

// AndMore returns a record, with no more lines than are allowed, that says how many more changes there were.
func (a Audit) AndMore(n int) Audit {
	if n > 0 {
		a.Changes = append(a.Changes, fmt.Sprintf("and %d more", n))
	}
	return a
}

func (s *db) audit(a Audit) consul.Op { return set(s.keys.Audits.Key(a.ID), a) }

// AuditFilter chooses audit records. Zero fields choose all.
type AuditFilter struct {
	RCID         string
	Node         string
	Since, Until time.Time // of the act; Until is not included
}

func (f *AuditFilter) matches(a *Audit) bool {
	return (f.RCID == "" || a.RCID == f.RCID) && (f.Node == "" || slices.Contains(a.Nodes, f.Node))
}

// within reports whether a record with this id may be of the time asked for. An id that is no ULID may be of any time.
func (f *AuditFilter) within(id string) bool {
	at, ok := AuditTime(id)
	return !ok || !at.Before(f.Since.Truncate(time.Millisecond)) && (f.Until.IsZero() || at.Before(f.Until))
}

// AuditTime returns when an audit record was made, which its id says.
func AuditTime(id string) (at time.Time, ok bool) {
	parsed, err := ulid.ParseStrict(strings.ToUpper(id))
	if err != nil {
		return time.Time{}, false
	}
	return ulid.Time(parsed.Time()), true
}

// OnNodes returns the record with the nodes that the act was about.
func (a Audit) OnNodes(names ...string) Audit {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	a.Nodes = names[:min(len(names), MaxAuditChanges)]
	return a
}

// ListAudit returns the audit records that the filter chooses, oldest first, and one *CorruptError for each that cannot be
// read. Only records of the time asked for are read.
func (s *Views) ListAudit(ctx context.Context, f AuditFilter) ([]Audit, []error, error) {
	ids, err := s.Audits.IDs(ctx)
	if err != nil {
		return nil, nil, err
	}
	var keys []string
	for _, id := range ids {
		if f.within(id) {
			keys = append(keys, s.keys.Audits.Key(id))
		}
	}
	found, err := s.c.GetMany(ctx, keys, consul.Default)
	if err != nil {
		return nil, nil, err
	}
	var out []Audit
	var corrupt []error
	for _, key := range keys {
		pair, ok := found[key]
		if !ok {
			continue // removed meanwhile
		}
		rec, err := s.Audits.decode(pair)
		switch {
		case err != nil:
			corrupt = append(corrupt, err)
		case f.matches(&rec.Value):
			out = append(out, rec.Value)
		}
	}
	return out, corrupt, nil
}

// AuditIDs returns the ids of all audit records, oldest first.
func (s *Leader) AuditIDs(ctx context.Context) ([]string, error) {
	ids, err := s.ids(ctx, s.keys.Audits.Key())
	slices.Sort(ids)
	return ids, err
}

// deletesPerTxn bounds what is removed at once, so that others get their turn in between.
const deletesPerTxn = 64

// DeleteAudit removes audit records, if nobody has changed them since they are looked at, and returns how many. Those that
// are gone already do not count.
func (s *Leader) DeleteAudit(ctx context.Context, ids []string) (int, error) {
	n := 0
	for chunk := range slices.Chunk(ids, deletesPerTxn) {
		keys := s.keys.Audits.Keys(chunk)
		found, err := s.c.GetMany(ctx, keys, consul.Default)
		if err != nil {
			return n, err
		}
		var ops []consul.Op
		for _, key := range keys {
			if pair, ok := found[key]; ok && path.Dir(key)+"/" == s.keys.Audits.Key() {
				ops = append(ops, consul.DeleteCAS(key, pair.ModifyIndex))
			}
		}
		if len(ops) == 0 {
			continue
		}
		if _, err := s.fenced(ctx, ops); err != nil {
			return n, err
		}
		n += len(ops)
	}
	return n, nil
}

// CommitAudited carries operations out with the audit record of them. One of them must be refused once it has landed. ErrConflict says that
// they were refused.
func (s *Operator) CommitAudited(ctx context.Context, what string, ops []consul.Op, a Audit) error {
	return s.commitDefinitely(ctx, what, a, ops...)
}

// Record writes an audit record alone, or writes it again: of what is done elsewhere than in Consul.
func (s *Operator) Record(ctx context.Context, a Audit) error {
	_, err := s.c.Commit(ctx, []consul.Op{s.audit(a)})
	return err
}
