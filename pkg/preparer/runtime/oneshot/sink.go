package oneshot

import (
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// sink hands on what a program writes, up to a bound, until it is shut. What nobody takes is dropped, so that nobody blocks.
type sink struct {
	mu            sync.Mutex
	to            io.Writer // nil: nobody takes any more
	left, dropped int64
}

// sinks returns where stdout and stderr of a program go.
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

// shut says what was dropped. Nothing is handed on after that.
func (s *sink) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != nil && s.dropped > 0 {
		_, _ = fmt.Fprintf(s.to, "\n[%d more bytes of output were dropped]\n", s.dropped) // as the rest of it
	}
	s.to = nil
}
