package farm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// suspects are nodes whose reservation says that they are drained while nobody drains them.
type suspects struct {
	mu    sync.Mutex
	names map[string]bool
}

func (s *suspects) add(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil {
		s.names = map[string]bool{}
	}
	s.names[name] = true
}

// take returns the suspects and forgets them: who is still one is met again.
func (s *suspects) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.Sorted(maps.Keys(s.names))
	s.names = nil
	return names
}

// misclosed reports whether a reservation says that a node is drained, and what operators said, as seen last, does not.
func misclosed(v *node.View, res node.Reservation) bool {
	return v != nil && res.Closed && v.Ops.Drain == nil
}

// mendClosed makes reservations say which nodes are drained, where the record was lost or is an older one (R13): without
// it a farm that has not heard of a drain yet could place there. Those of drained nodes are looked at by the farm with the
// lowest id; the others where a farm meets one, so that a cluster without drains reads nothing.
func (f *Farm) mendClosed(ctx context.Context) error {
	names := f.suspects.take()
	if IsLowest(f.cfg.ID, f.Members()) {
		var drained []string
		for name, v := range f.world.nodes() {
			if v.Ops.Drain != nil {
				drained = append(drained, name)
			}
		}
		d, err := f.cfg.Store.ReadDetails(ctx, store.Wanted{Reservations: drained}, false)
		if err != nil {
			return err
		}
		for _, name := range drained {
			if d.Unreadable[name] == nil && !d.Reservations[name].Value.Closed {
				names = append(names, name)
			}
		}
	}
	var errs []error
	for _, name := range names {
		mended, err := f.cfg.Store.MendClosed(ctx, name)
		switch {
		case mended:
			f.log.WithField(obs.Node, name).Warn("a node's reservation did not say whether the node is drained; mended")
		case errors.Is(err, store.ErrRefused): // somebody was faster; the next sweep looks again
		case err != nil:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
