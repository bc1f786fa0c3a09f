package nodeapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

// MaxLine is how many bytes of a line are handed on at once: a longer one comes in pieces.
const MaxLine = 64 << 10

// followEvery is how often a log that is followed is looked at.
const followEvery = 200 * time.Millisecond

// errNoPrevious is what is told of a log without a start that found something written. Starts that found nothing leave no note.
var errNoPrevious = errors.New("nothing was written before its last start, or the log does not go back so far")

// marks returns where the last two starts of the program are noted: each where its output begins, and where that of the
// start before ends. A start that finds nothing written is not noted.
func (s *span) marks() (last, before mark, count int, err error) {
	err = s.lines(0, s.size, func(at int64, line []byte) {
		if rest, marked := logfile.CutMark(line); marked {
			before, last = last, mark{ends: at + int64(len(rest)), begins: at + int64(len(line))}
			count++
		}
	})
	return last, before, count, err
}

// mark is where the output of one start ends and that of the next begins.
type mark struct{ ends, begins int64 }

// EachLine calls visit for each line, its end included, until that returns an error. A line that is too long comes in pieces.
func EachLine(from io.Reader, visit func(line []byte) error) error {
	r := bufio.NewReaderSize(from, MaxLine)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			if err := visit(line); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// lines calls visit for each line, with where it begins.
func (s *span) lines(from, to int64, visit func(at int64, line []byte)) error {
	return EachLine(s.section(from, to), func(line []byte) error {
		visit(from, line)
		from += int64(len(line))
		return nil
	})
}

// part returns which part of the span is asked for.
func (s *span) part(previous bool, tail int) (from, to int64, err error) {
	to = s.size
	if previous {
		last, before, count, err := s.marks()
		if err != nil {
			return 0, 0, err
		}
		if count == 0 {
			return 0, 0, errNoPrevious
		}
		from, to = before.begins, last.ends
	}
	if tail < 0 {
		return from, to, nil
	}
	begins := make([]int64, 0, min(tail, 1000)) // of the last lines
	next := 0
	whole := true // the last line seen has an end
	err = s.lines(from, to, func(at int64, line []byte) {
		_, marked := logfile.CutMark(line)
		if continued := !whole; !continued && !marked && tail > 0 {
			if len(begins) < tail {
				begins = append(begins, at)
			} else {
				begins[next%tail] = at
			}
			next++
		}
		whole = bytes.HasSuffix(line, []byte("\n"))
	})
	switch {
	case tail == 0:
		from = to
	case next > tail:
		from = begins[next%tail]
	}
	return from, to, err
}

// printer writes lines of one log, without the notes of starts.
type printer struct {
	to     io.Writer
	prefix string // of each line
	held   []byte // the beginning of a line
	middle bool   // the beginning of the line has been written
}

// copy writes what the reader gives. A line without an end is held until its end comes, or flush is called.
func (p *printer) copy(from io.Reader) error {
	return EachLine(from, func(line []byte) error {
		p.held = append(p.held, line...)
		if line[len(line)-1] != '\n' && len(p.held) < MaxLine {
			return nil
		}
		return p.print()
	})
}

// print writes what is held.
func (p *printer) print() error {
	line, marked := logfile.CutMark(p.held)
	defer func() { p.held = p.held[:0] }()
	if marked && (len(line) > 0 || p.middle) {
		line = append(slices.Clone(line), '\n')
	}
	if len(line) == 0 {
		return nil
	}
	if !p.middle {
		if _, err := io.WriteString(p.to, p.prefix); err != nil {
			return err
		}
	}
	p.middle = line[len(line)-1] != '\n'
	_, err := p.to.Write(line)
	return err
}

// flush writes a line that has no end yet.
func (p *printer) flush() error {
	if len(p.held) == 0 {
		return nil
	}
	return p.print()
}

// tail follows one log over its rotations.
type tail struct {
	path    string
	printer printer
	next    place // of what was not read yet
}

// begin prints the part of the log that is asked for, and remembers where it ended.
func (t *tail) begin(previous bool, lines int) error {
	s, err := openSpan(t.path)
	if err != nil {
		return err
	}
	defer s.close()
	from, to, err := s.part(previous, lines)
	if err != nil {
		return err
	}
	r := s.section(from, to)
	err = t.printer.copy(r)
	t.next = r.place()
	return err
}

// more prints what was added, over rotations.
func (t *tail) more() error {
	s, err := openSpan(t.path)
	if err != nil {
		return err
	}
	defer s.close()
	r := s.section(s.find(t.next), s.size)
	err = t.printer.copy(r)
	t.next = r.place()
	return err
}

// follow prints what is added to the logs until ctx ends, or nothing writes to them any more.
func follow(ctx context.Context, tails []*tail, more func() bool, flush func() error) error {
	for {
		last := !more()
		for _, t := range tails {
			if err := t.more(); err != nil {
				return err
			}
		}
		if last {
			for _, t := range tails {
				if err := t.printer.flush(); err != nil {
					return err
				}
			}
			return flush()
		}
		if err := flush(); err != nil {
			return err
		}
		select {
		case <-time.After(followEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
