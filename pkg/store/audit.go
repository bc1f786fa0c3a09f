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

// Audit is the record at audit/<ulid>: who changed what.
type Audit struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Who     string    `json:"who"`  // operator or farm id
	What    string    `json:"what"` // the act, such as "scale" or "reconcile"
	RCID    string    `json:"rc_id,omitempty"`
	Nodes   []string  `json:"nodes,omitempty"` // the affected nodes, sorted; at most MaxAuditChanges
	Changes []string  `json:"changes"`         // the difference, one line each
}

// MaxAuditChanges bounds the lines of one record, MaxAuditLine each line in bytes of JSON. A record takes less than
// MaxAuditBytes.
const (
	MaxAuditChanges = 50
	MaxAuditLine    = 500
	MaxAuditBytes   = 48 * 1024
)

// NewAudit returns a record of now. If there are too many changes, a last line has the number of the others.
func NewAudit(who, what, rcID string, changes []string) Audit {
	more := max(0, len(changes)-MaxAuditChanges)
	changes = slices.Clone(changes[:len(changes)-more])
	for i := range changes {
		changes[i] = field.Cut(changes[i], MaxAuditLine)
	}
	return Audit{
		ID: NewID(), At: time.Now().UTC(), Who: field.Cut(who, MaxAuditLine), What: field.Cut(what,
			MaxAuditLine), RCID: rcID, Changes: changes,
	}.AndMore(more)
}

// AndMore adds a line with the number of further changes.
func (a Audit) AndMore(n int) Audit {
	if n > 0 {
		a.Changes = append(a.Changes, fmt.Sprintf("and %d more", n))
	}
	return a
}

func (s *db) audit(a Audit) consul.Op { return set(s.keys.Audits.Key(a.ID), a) }

// AuditFilter selects audit records. Zero fields select all.
type AuditFilter struct {
	RCID         string
	Node         string
	Since, Until time.Time // bounds of the time of the act; Until itself is not included
}

func (f *AuditFilter) matches(a *Audit) bool {
	return (f.RCID == "" || a.RCID == f.RCID) && (f.Node == "" || slices.Contains(a.Nodes, f.Node))
}

// within reports whether a record may be of the requested time. A record whose id is no ULID may be of any time.
func (f *AuditFilter) within(id string) bool {
	at, ok := AuditTime(id)
	return !ok || !at.Before(f.Since.Truncate(time.Millisecond)) && (f.Until.IsZero() || at.Before(f.Until))
}

// AuditTime takes the time of a record from its id.
func AuditTime(id string) (at time.Time, ok bool) {
	parsed, err := ulid.ParseStrict(strings.ToUpper(id))
	if err != nil {
		return time.Time{}, false
	}
	return ulid.Time(parsed.Time()), true
}

// OnNodes returns the record with the affected nodes.
func (a Audit) OnNodes(names ...string) Audit {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	a.Nodes = names[:min(len(names), MaxAuditChanges)]
	return a
}

// ListAudit returns the matching records, oldest first, and a *CorruptError for each unreadable one. It reads only
// records of the requested time, because an id contains the time.
func (v *Views) ListAudit(ctx context.Context, f AuditFilter) ([]Audit, []error, error) {
	ids, err := v.Audits.IDs(ctx)
	if err != nil {
		return nil, nil, err
	}
	var keys []string
	for _, id := range ids {
		if f.within(id) {
			keys = append(keys, v.keys.Audits.Key(id))
		}
	}
	recs, corrupt, err := v.Audits.at(ctx, Default, keys)
	var out []Audit
	for i := range recs {
		if f.matches(&recs[i].Value) {
			out = append(out, recs[i].Value)
		}
	}
	return out, corrupt, err
}

// AuditIDs returns the ids of all audit records, oldest first.
func (l *Leader) AuditIDs(ctx context.Context) ([]string, error) {
	ids, err := l.ids(ctx, l.keys.Audits.Key())
	slices.Sort(ids)
	return ids, err
}

const deletesPerTxn = 64

// DeleteAudit removes audit records in transactions of bounded size, and returns how many it has removed. If a
// transaction is refused, for example because another program has changed one of its records, DeleteAudit stops and
// returns ErrRefused.
func (l *Leader) DeleteAudit(ctx context.Context, ids []string) (int, error) {
	n := 0
	for chunk := range slices.Chunk(ids, deletesPerTxn) {
		keys := l.keys.Audits.Keys(chunk)
		found, err := l.c.GetMany(ctx, keys, consul.Default)
		if err != nil {
			return n, err
		}
		var ops []consul.Op
		for _, key := range keys {
			if pair, ok := found[key]; ok && path.Dir(key)+"/" == l.keys.Audits.Key() {
				ops = append(ops, consul.DeleteCAS(key, pair.ModifyIndex))
			}
		}
		if len(ops) == 0 {
			continue
		}
		if _, err := l.fenced(ctx, ops); err != nil {
			return n, err
		}
		n += len(ops)
	}
	return n, nil
}

// CommitAudited writes operations with their audit record. They must include a condition that is false after they
// landed, because otherwise they could land twice. ErrConflict: refused.
func (o *Operator) CommitAudited(ctx context.Context, what string, ops []consul.Op, a Audit) error {
	return o.commitDefinitely(ctx, what, a, ops...)
}

// Record writes an audit record of an act outside Consul. It can be called again with the same record.
func (o *Operator) Record(ctx context.Context, a Audit) error {
	return o.send(ctx, o.audit(a))
}
