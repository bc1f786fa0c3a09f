package nodeapi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

// plenty rotated files keep all text of a history.
const plenty = 500

// stepped is a rotation that a test can kill between two steps.
type stepped struct {
	next  chan bool // true: continue; false: end as if killed
	ended chan bool // false: it waits for next; true: it has ended
	err   error
}

// begin starts the only rotation, up to its first step.
func begin(rotate func() error) (r *stepped, ended bool) {
	r = &stepped{next: make(chan bool), ended: make(chan bool)}
	logfile.Step = func(string) {
		r.ended <- false
		if !<-r.next {
			goruntime.Goexit()
		}
	}
	go func() {
		defer func() { r.ended <- true }()
		r.err = rotate()
	}()
	return r, <-r.ended
}

func (s *stepped) step(alive bool) (ended bool) {
	s.next <- alive
	return <-s.ended
}

// history runs steps of the program and of rotations between the steps of the reader.
type history struct {
	*rapid.T
	p       *program
	limit   int64
	keep    int
	written int
	turn    *stepped // the rotation under way
	killed  bool     // the last rotation was killed
}

func (h *history) do() {
	for range h.intn(4, "steps") {
		switch h.intn(6, "step") {
		case 0:
			h.write(h.intn(30, "lines"))
		case 1:
			if h.turn != nil {
				h.end(h.turn.step(false))
				h.killed = true
			}
		default:
			h.rotate()
		}
	}
}

func (h *history) intn(n int, what string) int { return rapid.IntRange(0, n-1).Draw(h.T, what) }

func (h *history) write(lines int) {
	var text strings.Builder
	for range lines {
		fmt.Fprintf(&text, "line %d\n", h.written)
		h.written++
	}
	h.p.write(h.T, text.String())
}

func (h *history) rotate() {
	if h.turn != nil {
		h.end(h.turn.step(true))
		return
	}
	rotate := func() error { return logfile.Rotate(h.p.path, h.limit, h.keep) }
	if h.killed { // does the same as a new supervisor
		rotate = func() error {
			return errors.Join(logfile.Settle(h.p.path, h.keep), logfile.Rotate(h.p.path, h.limit, h.keep))
		}
	}
	var ended bool
	h.turn, ended = begin(rotate)
	h.killed = false
	h.end(ended)
}

func (h *history) end(ended bool) {
	if !ended {
		return
	}
	if h.turn.err != nil {
		h.Fatal(h.turn.err)
	}
	h.turn = nil
}

func (h *history) follow() string {
	var out bytes.Buffer
	t := &tail{path: h.p.path, printer: printer{to: &out}}
	if err := t.begin(false, -1); err != nil {
		h.Fatal(err)
	}
	for range h.intn(15, "looks") {
		h.do()
		if err := t.more(); err != nil {
			h.Fatal(err)
		}
	}
	between = func() {}
	for h.turn != nil { // the rotation must end, because the test changes between and Step
		h.rotate()
	}
	if err := errors.Join(t.more(), t.printer.flush()); err != nil {
		h.Fatal(err)
	}
	return out.String()
}

// check returns the first and the last line. text must have each line in between once and in order, or if gaps is true,
// at most once.
func (h *history) check(text string, gaps bool) (first, last int) {
	first, last = -1, -1
	for line := range strings.Lines(text) {
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(line, "line "), "\n"))
		if err != nil {
			h.Fatalf("%.80q is no line", line)
		}
		if first < 0 {
			first, last = n, n-1
		}
		if n <= last || n > last+1 && !gaps {
			h.Fatalf("line %d follows line %d", n, last)
		}
		last = n
	}
	return first, last
}

// Between any two steps of a reader, lines can be written, and rotations run, shorten or be killed. A follower gets
// each line once, and a reader all that are kept.
func TestReadBetweenTheStepsOfRotations(t *testing.T) {
	step := logfile.Step
	defer func() { logfile.Step, between = step, func() {} }()
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{
			T: rt, p: newProgram(t),
			limit: int64(100 + rapid.IntRange(0, 400).Draw(rt, "limit")), keep: plenty,
		}
		if rapid.Bool().Draw(rt, "few") {
			h.keep = 1 + h.intn(3, "keep")
		}
		if rapid.Bool().Draw(rt, "long") { // a little less than the length from which it is shortened
			if err := os.Truncate(h.p.path, 64<<20-int64(h.intn(3000, "short"))); err != nil {
				rt.Fatal(err)
			}
		}
		h.write(h.intn(100, "before"))
		between = h.do
		followed := h.follow()
		h.check(followed, h.keep < plenty)
		kept, err := h.p.show(false, -1)
		if err != nil {
			rt.Fatal(err)
		}
		if first, last := h.check(kept, false); last != h.written-1 || h.keep == plenty && first > 0 {
			rt.Fatalf("lines %d to %d are kept, want those up to %d", first, last, h.written-1)
		}
		if !strings.HasSuffix(followed, kept) {
			rt.Fatalf("what is kept was not followed as it is: %q, kept: %q", followed, kept)
		}
	})
}
