package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
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
	// ErrInvalid means that a record would be one that its readers refuse; it was not sent.
	ErrInvalid = errors.New("invalid record")
	// ErrLost means that the session or the lock is not ours any more.
	ErrLost = consul.ErrLost
	// ErrWentBack means that the store went back in time.
	ErrWentBack = consul.ErrWentBack
	// ErrUnanswered means, joined to ErrWentBack, that nothing could be done about that yet.
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

// Level chooses what a read may miss.
type Level = consul.Consistency

const (
	// Default is answered by the leader; for a moment around an election it may be behind.
	Default = consul.Default
	// Consistent makes the leader prove its leadership first. The first read after a claim uses it.
	Consistent = consul.Consistent
	// Stale is answered by any server, also without a leader, and may be old. Nothing is decided by it.
	Stale = consul.Stale
)

func levelOf(consistent bool) Level {
	if consistent {
		return Consistent
	}
	return Default
}

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

// CorruptAt returns what is said of records that cannot be read, by the last part of their keys: the name of a node, where the records are about nodes.
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

// Records are all records of one kind.
type Records[T any] struct {
	Kind
	db   *db
	home func(key string, value *T) string // where a record belongs that was found at a key; nil: it does not say
}

// Get reads one record, or returns ErrNotFound, or a *CorruptError. Unlike a list, which Consul answers emptily to a request without a token, it
// fails when the key may not be read.
func (r *Records[T]) Get(ctx context.Context, level Level, id ...string) (Rec[T], error) {
	pair, err := r.db.c.Get(ctx, r.Key(id...), level)
	if err != nil {
		return Rec[T]{}, err
	}
	return r.decode(pair)
}

// List reads all records, or those whose ids begin with a part, and one *CorruptError for each that cannot be read.
func (r *Records[T]) List(ctx context.Context, level Level, below ...string) ([]Rec[T], []error, error) {
	prefix := r.Key()
	if len(below) > 0 {
		prefix = r.Below(below[0])
	}
	pairs, err := r.db.c.List(ctx, prefix, level)
	if err != nil {
		return nil, nil, err
	}
	recs, corrupt := each(pairs, r.decode)
	return recs, corrupt, nil
}

// IDs returns the last parts of all ids, in the order of the keys, whether the records can be read or not.
func (r *Records[T]) IDs(ctx context.Context) ([]string, error) { return r.db.ids(ctx, r.Key()) }

// Exists reports whether there is a record, readable or not.
func (r *Records[T]) Exists(ctx context.Context, id ...string) (bool, error) {
	return r.db.exists(ctx, r.Key(id...))
}

// decode reads one record. One that says that it is another than its key does, as a copy would, is corrupt.
func (r *Records[T]) decode(p consul.Pair) (Rec[T], error) {
	rec := Rec[T]{Index: p.ModifyIndex, Session: p.Session}
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

// decodeIn decodes one of the records that were found; a missing one has index zero.
func (r *Records[T]) decodeIn(found map[string]consul.Pair, key string) (Rec[T], error) {
	if pair, ok := found[key]; ok {
		return r.decode(pair)
	}
	return Rec[T]{}, nil
}

// recallIn is decodeIn by way of the memo.
func (r *Records[T]) recallIn(found map[string]consul.Pair, key string) (Rec[T], error) {
	if pair, ok := found[key]; ok {
		return r.recall(pair)
	}
	return Rec[T]{}, nil
}

// recallAt recalls those of some records, each of a node and an identity, that were found, and returns a *CorruptError for each that cannot be read.
func (r *Records[T]) recallAt(found map[string]consul.Pair, at []At) (map[At]T, []error) {
	out := make(map[At]T, len(at))
	var corrupt []error
	for _, a := range at {
		if rec, err := r.recallIn(found, r.At(a)); err != nil {
			corrupt = append(corrupt, err)
		} else if rec.Index != 0 {
			out[a] = rec.Value
		}
	}
	return out, corrupt
}

// each decodes what can be decoded and returns one CorruptError for each record that cannot. Marker keys are left out.
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
	return cas(key, value, index)
}

// NewID returns a fresh random id: a ULID in lower case, which sorts by the time of its making.
func NewID() string { return strings.ToLower(ulid.Make().String()) }
