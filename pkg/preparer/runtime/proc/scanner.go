package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
)

// Scanner reads the table of all processes. Concurrent callers share one read, because a hundred pods may stop
// together. The zero value is ready to use.
type Scanner struct {
	begun atomic.Uint64 // number of the newest read that has begun

	mu     sync.Mutex
	latest uint64 // number of the read that returned table and err
	table  []Stat
	err    error
}

// Scan returns a table that was read after the call began. Callers must not change it.
func (s *Scanner) Scan() ([]Stat, error) {
	want := s.begun.Load() + 1
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest < want {
		s.latest = s.begun.Add(1)
		s.table, s.err = readTable()
	}
	return s.table, s.err
}

func readTable() ([]Stat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("read process table: %w", err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read process table: %w", err)
	}
	table := make([]Stat, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		s, err := ReadStat(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		table = append(table, s)
	}
	return table, nil
}
