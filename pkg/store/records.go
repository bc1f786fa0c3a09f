package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Sentinels that callers test for with errors.Is.
var (
	ErrNotFound = consul.ErrNotFound
	// ErrConflict means that a record changed since it was read: read again, compute again.
	ErrConflict = errors.New("changed meanwhile")
	// ErrRefused means that Consul refused a transaction; nothing of it was written.
	ErrRefused = consul.ErrRefused
	// ErrUnknown means that a transaction may have landed, or may yet: bump the fence before reading on.
	ErrUnknown = consul.ErrUnknown
	// ErrTooLarge means that a record is larger than Consul takes; it was not sent.
	ErrTooLarge = consul.ErrTooLarge
	// ErrLost means that the session or the lock is not ours any more.
	ErrLost = consul.ErrLost
	// ErrRegressed means that the store went back in time.
	ErrRegressed = consul.ErrRegressed
	// ErrUnanswered means, joined to ErrRegressed, that nothing could be done about that yet.
	ErrUnanswered = consul.ErrUnanswered
	// ErrFiltered means that the token may not read what was asked for.
	ErrFiltered = consul.ErrFiltered
)

// Failures are what Outcome says of writes that did not land.
var Failures = []string{"refused", "unknown", "error"}

// Outcome says in a word what became of a write; good where it landed.
func Outcome(err error, good string) string {
	switch {
	case err == nil:
		return good
	case errors.Is(err, ErrUnknown):
		return "unknown"
	case errors.Is(err, ErrRefused):
		return "refused"
	default:
		return "error"
	}
}

// Store reads and writes typed records. It is safe for concurrent use.
type Store struct {
	c    *consul.Client
	keys *Keys
	memo memo // of what passes and runners read
}

// New returns a store for the records below the keys' prefix.
func New(c *consul.Client, keys *Keys) *Store { return &Store{c: c, keys: keys} }

// Keys returns the key schema.
func (s *Store) Keys() *Keys { return s.keys }

// Rec is a record as read, with what a later write needs to be refused if the record changed.
type Rec[T any] struct {
	Value   T
	Index   uint64 // Consul's modify index; zero when the record does not exist
	Session string // that holds the key as a lock
}

// CorruptError is a record that exists and cannot be read.
type CorruptError struct {
	Key string
	Err error
}

// Error names the key.
func (e *CorruptError) Error() string { return fmt.Sprintf("unreadable record %s: %v", e.Key, e.Err) }

// Unwrap returns what is wrong with it.
func (e *CorruptError) Unwrap() error { return e.Err }

// IsCorrupt reports whether err is about a record that exists and cannot be read.
func IsCorrupt(err error) bool {
	_, is := errors.AsType[*CorruptError](err)
	return is
}

// checker is a record that can tell whether it may be acted on.
type checker interface{ Check() error }

// decode reads one record. One that says that it is another than its key does, as a copy would, is corrupt.
func decode[T any](keys *Keys, p consul.Pair) (Rec[T], error) {
	rec := Rec[T]{Index: p.ModifyIndex, Session: p.Session}
	err := json.Unmarshal(p.Value, &rec.Value)
	if c, ok := any(&rec.Value).(checker); ok && err == nil {
		err = c.Check()
	}
	if err == nil {
		err = keys.own(p.Key, &rec.Value)
	}
	if err != nil {
		return rec, &CorruptError{Key: p.Key, Err: err}
	}
	return rec, nil
}

// decodeAll decodes what can be decoded and returns one CorruptError for each record that cannot. Marker keys are left out.
func decodeAll[T any](keys *Keys, pairs []consul.Pair) (recs []Rec[T], corrupt []error) {
	return each(pairs, func(p consul.Pair) (Rec[T], error) { return decode[T](keys, p) })
}

// recallAll is decodeAll by way of the memo.
func recallAll[T any](s *Store, pairs []consul.Pair) (recs []Rec[T], corrupt []error) {
	return each(pairs, func(p consul.Pair) (Rec[T], error) { return recall[T](s, p) })
}

func each[T any](pairs []consul.Pair, decode func(consul.Pair) (Rec[T], error)) (recs []Rec[T], corrupt []error) {
	for _, p := range pairs {
		if strings.HasSuffix(p.Key, "/") {
			continue
		}
		rec, err := decode(p)
		if err != nil {
			corrupt = append(corrupt, err)
			continue
		}
		recs = append(recs, rec)
	}
	return recs, corrupt
}

func get[T any](ctx context.Context, s *Store, key string, level consul.Consistency) (Rec[T], error) {
	pair, err := s.c.Get(ctx, key, level)
	if err != nil {
		return Rec[T]{}, err
	}
	return decode[T](s.keys, pair)
}

func levelOf(consistent bool) consul.Consistency {
	if consistent {
		return consul.Consistent
	}
	return consul.Default
}

func list[T any](ctx context.Context, s *Store, prefix string, level consul.Consistency) ([]Rec[T], []error, error) {
	pairs, err := s.c.List(ctx, prefix, level)
	if err != nil {
		return nil, nil, err
	}
	recs, corrupt := decodeAll[T](s.keys, pairs)
	return recs, corrupt, nil
}

// decodeFound decodes one of the records that were found; a missing one has index zero.
func decodeFound[T any](keys *Keys, found map[string]consul.Pair, key string) (Rec[T], error) {
	pair, ok := found[key]
	if !ok {
		return Rec[T]{}, nil
	}
	return decode[T](keys, pair)
}

// recallFound is decodeFound by way of the memo.
func recallFound[T any](s *Store, found map[string]consul.Pair, key string) (Rec[T], error) {
	pair, ok := found[key]
	if !ok {
		return Rec[T]{}, nil
	}
	return recall[T](s, pair)
}

// statusOf picks a controller's status out of what was found: nil where there is none that can be read, which is written anew.
func (s *Store) statusOf(found map[string]consul.Pair, rcID string) *rc.Status {
	st, err := recallFound[rc.Status](s, found, s.keys.Statuses.Key(rcID))
	if err != nil || st.Index == 0 {
		return nil
	}
	return &st.Value
}

// sameRecord is the condition that a record is as it was read; zero: that there is none.
func sameRecord(key string, index uint64) consul.Op {
	return operation{verb: checkIndex, key: key, index: index}.op()
}

// conflictOn joins ErrConflict to a refusal on a record that somebody else has written.
func conflictOn(err error, key string) error {
	if consul.RefusedOn(err, key) {
		return errors.Join(ErrConflict, err)
	}
	return err
}

// replaceOp writes a record, or removes it where there is none to write (nil), if it is as it was read.
func replaceOp[T any](key string, value *T, index uint64) consul.Op {
	if value == nil {
		return consul.DeleteCAS(key, index)
	}
	return consul.CAS(key, encode(value), index)
}

// encode is for records made of plain fields, whose encoding cannot fail.
func encode(v any) []byte {
	// Those that are written by the thousand. By their types: a record that embeds one of them has its method too.
	switch r := v.(type) {
	case *pod.Placement:
		return r.AppendJSON(make([]byte, 0, usualBytes))
	case *pod.Intent:
		return r.AppendJSON(make([]byte, 0, usualBytes))
	case *node.Reservation:
		return r.AppendJSON(make([]byte, 0, usualBytes))
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	return data
}

// usualBytes is more than most placements, intents and reservations take.
const usualBytes = 768

// NewID returns a fresh random id: a ULID in lower case, which sorts by the time of its making.
func NewID() string { return strings.ToLower(ulid.Make().String()) }

// ring is the operation that rings a controller's bell. The value differs every time, because writing an identical value
// wakes nobody.
func (s *Store) ring(rcID string) consul.Op {
	return consul.Set(s.keys.Bells.Key(rcID), []byte(NewID()))
}

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

func (s *Store) audit(a Audit) consul.Op { return consul.Set(s.keys.Audits.Key(a.ID), encode(a)) }
