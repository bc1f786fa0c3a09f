package store

import (
	"encoding/json"
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
)

// checker is a record with a check. A record that it refuses is neither read nor written.
type checker interface{ Check() error }

// checked returns why a record, or what it points to, is refused.
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
func (i *InvalidError) Error() string {
	return fmt.Sprintf("record %s is not written, because nobody could read it: %v", i.Key, i.Err)
}

// Unwrap returns what is wrong with the record.
func (i *InvalidError) Unwrap() error { return i.Err }

// Is matches ErrInvalid.
func (i *InvalidError) Is(target error) bool { return target == ErrInvalid }

// written returns the operation that writes a record. The operation names the record's newest feature, because the
// guard compares it with the gate. For a record that its readers would refuse, the operation is never sent.
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

// cas writes a record at an index. Index zero: the record must not exist.
func cas[T any](key string, record T, index uint64) consul.Op {
	return written(key, record, func(value []byte) consul.Op { return consul.CAS(key, value, index) })
}

func set[T any](key string, record T) consul.Op {
	return written(key, record, func(value []byte) consul.Op { return consul.Set(key, value) })
}

func lock[T any](key string, record T, session string) consul.Op {
	return written(key, record, func(value []byte) consul.Op { return consul.Lock(key, value, session) })
}

func encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return data, nil
}
