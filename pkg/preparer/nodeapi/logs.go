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

// MaxLine is the longest piece of a line, in bytes.
const MaxLine = 64 << 10

const followEvery = 200 * time.Millisecond

var errNoPrevious = errors.New("nothing was written before its last start, or the log does not go back so far")

// marks returns the last two marks in the log, and their number. Each start of the program writes a mark, unless the
// log is empty then.
func (s *span) marks() (last, before mark, count int, err error) {
	err = s.lines(0, s.size, func(at int64, line []byte) {
		if rest, marked := logfile.CutMark(line); marked {
			before, last = last, mark{ends: at + int64(len(rest)), begins: at + int64(len(line))}
			count++
		}
	})
	return last, before, count, err
}

// mark has the offsets at which the output of one run ends, and the output of the next run begins.
type mark struct{ ends, begins int64 }

// EachLine calls visit for each line with its line break, or for each piece of a line longer than MaxLine, until visit
// returns an error.
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

// lines also passes the offset where the line begins.
func (s *span) lines(from, to int64, visit func(at int64, line []byte)) error {
	return EachLine(s.section(from, to), func(line []byte) error {
		visit(from, line)
		from += int64(len(line))
		return nil
	})
}

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
	begins := make([]int64, 0, min(tail, 1000)) // offsets of the last lines
	next := 0
	whole := true // the last piece has a line break
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

// printer writes the lines of one log, without the marks.
type printer struct {
	to     io.Writer
	prefix string // written before each line
	held   []byte // read, and not written yet
	middle bool   // the beginning of the line was written already
}

// copy holds a last line without a line break, until its end is read or flush is called.
func (p *printer) copy(from io.Reader) error {
	return EachLine(from, func(line []byte) error {
		p.held = append(p.held, line...)
		if line[len(line)-1] != '\n' && len(p.held) < MaxLine {
			return nil
		}
		return p.print()
	})
}

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

func (p *printer) flush() error {
	if len(p.held) == 0 {
		return nil
	}
	return p.print()
}

// tail reads one log, also while it is rotated.
type tail struct {
	path    string
	printer printer
	next    place // of the first unread byte
}

// begin prints the requested part of the log.
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

// more prints text that was added since, even if the log was rotated.
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

// follow returns when ctx ends, or when no process can write to the logs any more.
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
