package rcctl

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// deed is one write of a command.
type deed struct {
	what string // that was written, such as "the drain of node n1"
	show string // the command that shows it
	// unknown: Consul may have got it and has not said what came of it.
	unknown bool
}

// did notes how a write ended, and returns its error.
func (s *conn) did(what, show string, err error) error {
	unknown := errors.Is(err, store.ErrUnknown) && !errors.Is(err, consul.ErrUnsent)
	if err == nil || unknown {
		s.deeds = slices.DeleteFunc(s.deeds, func(d deed) bool { return d.unknown && d.what == what }) // it was tried again
		s.deeds = append(s.deeds, deed{what: what, show: show, unknown: unknown})
	}
	return err
}

// maxDeeds bounds how many writes are named one by one.
const maxDeeds = 5

// written says what a command that failed has written.
func written(deeds []deed) []string {
	var done, lines []string
	for _, d := range deeds {
		if !d.unknown {
			done = append(done, d.what)
		}
	}
	if len(done) > 0 {
		lines = append(lines, "this was written: "+field.Few(done, maxDeeds, "; "))
	}
	for _, d := range deeds {
		if d.unknown {
			lines = append(lines, fmt.Sprintf("it is not known whether this was written: %s; to see: %s", d.what, d.show))
		}
	}
	switch {
	case len(lines) == 0:
		return []string{"nothing was written"}
	case len(done) == len(deeds):
		lines[0] += "; nothing else was"
	}
	return lines
}
