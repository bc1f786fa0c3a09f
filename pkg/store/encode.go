package store

import (
	"encoding/json"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// checker is a record that can tell whether it may be acted on. What it refuses is neither read nor written:
// Records.decode and written ask it.
type checker interface{ Check() error }

// checked returns why a record, or what it points to, may not be acted on. What is not asked about cannot tell.
func checked[T any](record *T) error {
	if c, ok := any(record).(checker); ok {
		return c.Check()
	}
	if c, ok := any(*record).(checker); ok {
		return c.Check()
	}
	return nil
}

// InvalidError is a record that was not written because its readers would refuse it. It matches ErrInvalid.
type InvalidError struct {
	Key string
	Err error
}

// Error names the key, and the fields with what is allowed.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("record %s is not written, because nobody could read it: %v", e.Key, e.Err)
}

// Unwrap returns what is wrong with it.
func (e *InvalidError) Unwrap() error { return e.Err }

// Is matches ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// written returns the operation that makes writes of a record's JSON, and says what the record needs of the gate. Of a
// record that its readers would refuse it returns one that is not sent.
func written[T any](key string, record T, writes func(value []byte) consul.Op) consul.Op {
	err := checked(&record)
	var value []byte
	if err == nil {
		value, err = encode(record)
	}
	if err != nil {
		return consul.Bad(key, &InvalidError{key, err})
	}
	return writes(value).Needs(feature.NeedOf(record))
}

// cas writes a record if it is as it was read; zero: there is none.
func cas[T any](key string, record T, index uint64) consul.Op {
	return written(key, record, func(value []byte) consul.Op { return consul.CAS(key, value, index) })
}

// set is cas whatever is there.
func set[T any](key string, record T) consul.Op {
	return written(key, record, func(value []byte) consul.Op { return consul.Set(key, value) })
}

// lock is set that takes the key for a session besides.
func lock[T any](key string, record T, session string) consul.Op {
	return written(key, record, func(value []byte) consul.Op { return consul.Lock(key, value, session) })
}

// encode returns a record as JSON.
func encode(v any) ([]byte, error) {
	// Those that are written by the thousand. By their types: a record that embeds one of them has its method too.
	switch r := v.(type) {
	case *pod.Placement:
		return r.AppendJSON(make([]byte, 0, usualBytes)), nil
	case *pod.Intent:
		return r.AppendJSON(make([]byte, 0, usualBytes)), nil
	case *node.Reservation:
		return r.AppendJSON(make([]byte, 0, usualBytes)), nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return data, nil
}

// usualBytes is more than most placements, intents and reservations take.
const usualBytes = 768
