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

// plenty is how many rotated files keep all that a history writes.
const plenty = 500

// stepped is a rotation that goes on when it is told to, by one step. It may be killed in between.
type stepped struct {
	next  chan bool // go on; false: you are killed
	ended chan bool // it waits for that; true: it has ended
	err   error
}

// begin starts a rotation, up to its first step. The next one may begin when it has ended.
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

func (r *stepped) step(alive bool) (ended bool) {
	r.next <- alive
	return <-r.ended
}

// history is a log that is written, rotated and read by one who does a step of the one between two steps of the other.
type history struct {
	*rapid.T
	p       *program
	limit   int64
	keep    int
	written int
	turn    *stepped // the rotation that is under way
	killed  bool     // the last one was
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

// rotate does one step of a rotation.
func (h *history) rotate() {
	if h.turn != nil {
		h.end(h.turn.step(true))
		return
	}
	rotate := func() error { return logfile.Rotate(h.p.path, h.limit, h.keep) }
	if h.killed { // a new supervisor
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

// follow has the log followed for a while, and returns what was.
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
	for h.turn != nil { // nobody else may use it until then
		h.rotate()
	}
	if err := errors.Join(t.more(), t.printer.flush()); err != nil {
		h.Fatal(err)
	}
	return out.String()
}

// check returns the numbers of the first and the last line. It fails unless all in between are there, once and in
// order; with gaps, unless they are in order.
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

// Whatever is done between two steps of whoever reads a log, and wherever a rotation is killed, also in one that makes
// the log shorter: who follows it sees each line once, and who reads it sees all that are kept.
func TestReadBetweenTheStepsOfRotations(t *testing.T) {
	step := logfile.Step
	defer func() { logfile.Step, between = step, func() {} }()
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{T: rt, p: newProgram(t), limit: int64(100 + rapid.IntRange(0, 400).Draw(rt, "limit")), keep: plenty}
		if rapid.Bool().Draw(rt, "few") {
			h.keep = 1 + h.intn(3, "keep")
		}
		if rapid.Bool().Draw(rt, "long") { // before it is long enough to be made shorter
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
