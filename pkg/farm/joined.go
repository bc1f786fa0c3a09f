package farm

import (
	"errors"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
)

// joinedError is many errors that are told in a few words: a pass may meet thousands of one kind.
type joinedError struct{ errs []error }

// joined is errors.Join with a text that is not long.
func joined(errs []error) error {
	var some []error
	for _, err := range errs {
		if err != nil {
			some = append(some, err)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return &joinedError{some}
}

// Error names the first few and says how many more there are.
func (e *joinedError) Error() string { return reconcile.Few(e.texts()) }

// Unwrap returns all of them.
func (e *joinedError) Unwrap() []error { return e.errs }

func (e *joinedError) texts() []string { return field.Each(e.errs, error.Error) }

// textsOf returns what an error consists of.
func textsOf(err error) []string {
	if many, is := errors.AsType[*joinedError](err); is {
		return many.texts()
	}
	return []string{err.Error()}
}
