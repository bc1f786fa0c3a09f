package farm

import (
	"errors"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// joinedError has a short text, because a pass can meet thousands of errors of one kind.
type joinedError struct{ errs []error }

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

// Error returns the first few texts, and how many more there are.
func (j *joinedError) Error() string { return reconcile.Few(j.texts()) }

// Unwrap returns all of the errors.
func (j *joinedError) Unwrap() []error { return j.errs }

func (j *joinedError) texts() []string { return field.Each(j.errs, error.Error) }

func textsOf(err error) []string {
	if many, is := errors.AsType[*joinedError](err); is {
		return many.texts()
	}
	return []string{err.Error()}
}
