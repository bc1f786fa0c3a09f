package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

// Sentinel errors for errors.Is.
var (
	ErrNotFound = consul.ErrNotFound
	// ErrConflict means that a record changed since it was read. Read and compute again.
	ErrConflict = errors.New("changed meanwhile")
	// ErrRefused means that Consul refused a transaction and wrote nothing.
	ErrRefused = consul.ErrRefused
	// ErrUnknown means that a transaction may have landed, or may still land. Bump the fence before you read again.
	ErrUnknown = consul.ErrUnknown
	// ErrTooLarge means that a record exceeds Consul's limits and was not sent.
	ErrTooLarge = consul.ErrTooLarge
	// ErrInvalid means that readers would refuse the record. It was not sent.
	ErrInvalid = errors.New("invalid record")
	// ErrLost means that this process has lost the session or the lock.
	ErrLost = consul.ErrLost
	// ErrWentBack means that the store went back in time.
	ErrWentBack = consul.ErrWentBack
	// ErrUnanswered is joined to ErrWentBack if the receiver of a watch could not act on the return in time.
	ErrUnanswered = consul.ErrUnanswered
	// ErrFiltered means that the token may not read everything that was asked for.
	ErrFiltered = consul.ErrFiltered
)

// Failures are the results of Outcome besides good.
var Failures = []string{"refused", "unknown", "error"}

// Outcome returns a write's outcome in a word; good if it landed.
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

// Level is how current a read must be.
type Level = consul.Consistency

const (
	// Default is answered by the leader. Around an election the answer may be old.
	Default = consul.Default
	// Consistent makes the leader prove its leadership first.
	Consistent = consul.Consistent
	// Stale is answered by any server, even without a leader, and may be old. No decision may depend on it.
	Stale = consul.Stale
)

// Rec is a record as read.
type Rec[T any] struct {
	Key     string
	Value   T
	Index   uint64 // Consul's modify index; zero if the record does not exist
	Session string // the session that holds the key as a lock
}

// CorruptError is a record that exists and cannot be read.
type CorruptError struct {
	Key string
	Err error
}

// Error names the key.
func (c *CorruptError) Error() string { return fmt.Sprintf("unreadable record %s: %v", c.Key, c.Err) }

// Unwrap returns what is wrong with the record.
func (c *CorruptError) Unwrap() error { return c.Err }

// CorruptAt returns what is wrong with unreadable records, by the last part of the key, such as a node's name.
func CorruptAt(found []error) map[string]string {
	texts := map[string]string{}
	for _, err := range found {
		if corrupt, is := errors.AsType[*CorruptError](err); is {
			texts[path.Base(corrupt.Key)] = corrupt.Error()
		}
	}
	return texts
}

// IsCorrupt reports whether err is about a record that exists and cannot be read.
func IsCorrupt(err error) bool {
	_, is := errors.AsType[*CorruptError](err)
	return is
}

// Records are all records of one kind. Lists have one *CorruptError for each unreadable record.
type Records[T any] struct {
	Kind
	db   *db
	home func(key string, value *T) string // the key to which a record belongs; nil: its content does not show the key
}

// Get returns ErrNotFound or a *CorruptError. If the token may not read the key, it returns an error, unlike List.
func (r *Records[T]) Get(ctx context.Context, level Level, id ...string) (Rec[T], error) {
	pair, err := r.db.c.Get(ctx, r.Key(id...), level)
	if err != nil {
		return Rec[T]{}, err
	}
	return r.decode(pair)
}

// present is Get, with an empty Value for a missing or unreadable record. Index is zero only for a missing one.
func (r *Records[T]) present(ctx context.Context, id ...string) (Rec[T], error) {
	rec, err := r.Get(ctx, Consistent, id...)
	if errors.Is(err, ErrNotFound) || IsCorrupt(err) {
		return Rec[T]{Index: rec.Index}, nil
	}
	return rec, err
}

// List reads all records, or those whose ids begin with the part below.
func (r *Records[T]) List(ctx context.Context, level Level, below ...string) ([]Rec[T], []error, error) {
	prefix := r.Key()
	if len(below) > 0 {
		prefix = r.Below(below[0])
	}
	pairs, err := r.db.c.List(ctx, prefix, level)
	recs, corrupt := r.each(pairs)
	return recs, corrupt, err
}

// listIf reads the records below a prefix of several kinds for whose keys ours is true.
func (r *Records[T]) listIf(ctx context.Context, prefix string, ours func(key string) bool) ([]Rec[T], []error, error) {
	pairs, err := r.db.c.List(ctx, prefix, Default)
	recs, corrupt := r.each(slices.DeleteFunc(pairs, func(p consul.Pair) bool { return !ours(p.Key) }))
	return recs, corrupt, err
}

// at reads the records at the keys, in this order, without missing ones.
func (r *Records[T]) at(ctx context.Context, level Level, keys []string) ([]Rec[T], []error, error) {
	found, err := r.db.c.GetMany(ctx, keys, level)
	pairs := make([]consul.Pair, 0, len(found))
	for _, key := range keys {
		if p, exists := found[key]; exists {
			pairs = append(pairs, p)
		}
	}
	recs, corrupt := r.each(pairs)
	return recs, corrupt, err
}

// IDs returns the last parts of all ids, sorted by key, also of unreadable records.
func (r *Records[T]) IDs(ctx context.Context) ([]string, error) { return r.db.ids(ctx, r.Key()) }

// Exists reports whether there is a record, readable or not.
func (r *Records[T]) Exists(ctx context.Context, id ...string) (bool, error) {
	return r.db.exists(ctx, r.Key(id...))
}

// decode refuses a record whose content belongs to another key, such as a copy.
func (r *Records[T]) decode(p consul.Pair) (Rec[T], error) {
	rec := Rec[T]{Key: p.Key, Index: p.ModifyIndex, Session: p.Session}
	err := json.Unmarshal(p.Value, &rec.Value)
	if err == nil {
		err = checked(&rec.Value)
	}
	if err == nil && r.home != nil {
		if home := r.home(p.Key, &rec.Value); home != p.Key {
			err = fmt.Errorf("its content belongs to %s", home)
		}
	}
	if err != nil {
		return rec, &CorruptError{Key: p.Key, Err: err}
	}
	return rec, nil
}

func (r *Records[T]) decodeIn(found map[string]consul.Pair, key string) (Rec[T], error) {
	if pair, ok := found[key]; ok {
		return r.decode(pair)
	}
	return Rec[T]{}, nil
}

// decodeAt decodes records about copies, without missing ones. It returns an error for each unreadable one.
func (r *Records[T]) decodeAt(found map[string]consul.Pair, at []At) (map[At]T, []error) {
	out := make(map[At]T, len(at))
	var corrupt []error
	for _, a := range at {
		if rec, err := r.decodeIn(found, r.At(a)); err != nil {
			corrupt = append(corrupt, err)
		} else if rec.Index != 0 {
			out[a] = rec.Value
		}
	}
	return out, corrupt
}

func (r *Records[T]) each(pairs []consul.Pair) (recs []Rec[T], corrupt []error) {
	for _, p := range pairs {
		if strings.HasSuffix(p.Key, "/") {
			continue
		}
		if rec, err := r.decode(p); err != nil {
			corrupt = append(corrupt, err)
		} else {
			recs = append(recs, rec)
		}
	}
	return recs, corrupt
}

// sameRecord is the condition that a record is unchanged; index zero: missing.
func sameRecord(key string, index uint64) consul.Op {
	if index == 0 {
		return consul.CheckMissing(key)
	}
	return consul.CheckIndex(key, index)
}

// conflictOn adds ErrConflict if Consul refused a transaction because of the record at key.
func conflictOn(err error, key string) error {
	if consul.RefusedOn(err, key) {
		return errors.Join(ErrConflict, err)
	}
	return err
}

// replaceOp writes a record, or removes it if value is nil, by cas.
func replaceOp[T any](key string, value *T, index uint64) consul.Op {
	if value == nil {
		return consul.DeleteCAS(key, index)
	}
	return cas(key, value, index)
}

// NewID returns a ULID in lower case, which sorts by the time when it was made.
func NewID() string { return strings.ToLower(ulid.Make().String()) }
