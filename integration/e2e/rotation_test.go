package e2e

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"syscall"
)

const numberedLine = "numbered line %09d ......................................................................................................\n"

// logRotation: a pod's log is rotated again and again while it is written and followed, and the supervisor is killed
// again and again. No line is lost or seen twice.
func logRotation(e *env) {
	e.startConsul("")
	e.preparer(1)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	log := filepath.Join(e.dir, "n1", "logs", e.rcID("hello")+".main.0", "web.log")
	_, lines := e.startRcctl("logs", "hello-main-0", "-f")
	e.awaitLine(lines, "listening on ")

	const wanted = 6 // rotations, however many lines a busy machine writes between two of them
	var followed atomic.Int64
	enough, done := make(chan struct{}), make(chan written, 1)
	go func() { done <- writeNumbered(e.t.Context(), log, &followed, enough) }()
	rotations, last, total := 0, os.FileInfo(nil), int64(math.MaxInt64)
	for followed.Load() < total {
		select {
		case end := <-done:
			if end.err != nil {
				e.t.Fatal(end.err)
			}
			total = end.lines
			continue
		case line, ok := <-lines:
			if want := strings.TrimSuffix(fmt.Sprintf(numberedLine, followed.Load()), "\n"); !ok || line != want {
				e.t.Fatalf("%q was followed (%t), want %q", line, ok, want)
			}
		}
		if n := followed.Add(1); n > 20_000_000 {
			e.t.Fatalf("%d rotations in %d lines, want %d", rotations, n, wanted)
		} else if n%1000 > 0 || rotations == wanted {
			continue
		}
		if now, err := os.Stat(log + ".1"); err == nil && (last == nil || !os.SameFile(now, last)) {
			last = now
			if rotations++; rotations%3 == 0 {
				for _, pid := range e.supervisors(1) {
					_ = syscall.Kill(pid, syscall.SIGKILL) // a supervisor that is gone was killed before
				}
			}
			if rotations == wanted {
				close(enough)
			}
		}
	}
	e.keptOnce(log, total)
	e.remember("hello")
	e.crash("hello", 0) // this needs a supervisor, because the last one was killed
	e.within(limit, func() error { return e.converged(e.rcIDs["hello"], 1) })
}

// written is the end of writeNumbered: how many lines it appended, and why it failed.
type written struct {
	lines int64
	err   error
}

// writeNumbered appends lines until enough is closed, at most some megabytes ahead of the follower.
func writeNumbered(ctx context.Context, log string, followed *atomic.Int64, enough <-chan struct{}) written {
	const ahead = 100_000
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return written{err: err}
	}
	defer f.Close()
	for n := int64(0); ; n++ {
		for n-followed.Load() > ahead {
			if ctx.Err() != nil { // the scenario has failed
				return written{lines: n, err: ctx.Err()}
			}
			goruntime.Gosched()
		}
		select {
		case <-enough:
			return written{lines: n}
		default:
		}
		if _, err := fmt.Fprintf(f, numberedLine, n); err != nil {
			return written{lines: n, err: err}
		}
	}
}

// keptOnce: the kept part of a log must end with the last line, and have each line once and in order.
func (e *env) keptOnce(log string, total int64) {
	e.t.Helper()
	e.within(limit, func() error {
		out := e.rcctl("", "logs", "hello-main-0")
		scanner, next := bufio.NewScanner(strings.NewReader(out)), int64(-1)
		for scanner.Scan() {
			var n int64
			if _, err := fmt.Sscanf(scanner.Text(), "numbered line %d", &n); err != nil {
				continue
			}
			if next >= 0 && n != next {
				e.t.Fatalf("line %d follows line %d", n, next-1)
			}
			next = n + 1
		}
		if next != total {
			return fmt.Errorf("line %d is the last one, want %d", next-1, total-1)
		}
		if pending, _ := filepath.Glob(log + ".upto-*"); len(pending) > 0 { // a rotation may have just begun
			return fmt.Errorf("a rotation was not ended: %v", pending)
		}
		return nil
	})
}
