package rcctl

import (
	"errors"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// did notes how a write ended, and returns its error.
func (s *conn) did(what, show string, err error) error {
	unknown := errors.Is(err, store.ErrUnknown) && !errors.Is(err, consul.ErrUnsent)
	if err == nil || unknown {
		s.deeds = slices.DeleteFunc(s.deeds, func(d inspect.Deed) bool { return d.Unknown && d.What == what }) // it was tried again
		s.deeds = append(s.deeds, inspect.Deed{What: what, Show: show, Unknown: unknown})
	}
	return err
}
