package oneshot

import (
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// sink passes a program's output to a writer, up to a bound, until shut is called. After an error of the writer it
// drops the rest, because the program must never block.
type sink struct {
	mu            sync.Mutex
	to            io.Writer // nil: all output is dropped
	left, dropped int64
}

func sinks(s runtime.Streams) (out, errs *sink) {
	out = &sink{to: s.Output, left: math.MaxInt64}
	if s.MaxBytes > 0 {
		out.left = s.MaxBytes
		return out, out
	}
	if s.Errors == nil {
		return out, out
	}
	return out, &sink{to: s.Errors, left: math.MaxInt64}
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part := p[:min(int64(len(p)), s.left)]
	s.left -= int64(len(part))
	s.dropped += int64(len(p) - len(part))
	if s.to != nil && len(part) > 0 {
		if _, err := s.to.Write(part); err != nil {
			s.to = nil
		}
	}
	return len(p), nil
}

func (s *sink) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != nil && s.dropped > 0 {
		_, _ = fmt.Fprintf(s.to, "\n[%d more bytes of output were dropped]\n", s.dropped) // errors do not matter here
	}
	s.to = nil
}
