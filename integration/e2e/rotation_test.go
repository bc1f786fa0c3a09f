package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"syscall"
)

// numberedLine is as long whatever its number is.
const numberedLine = "numbered line %09d ......................................................................................................\n"

// logRotation: a pod's log is rotated ten times while it is written and followed, and the supervisor is killed again
// and again: no line is lost or seen twice.
func logRotation(e *env) {
	e.startConsul("")
	e.preparer(1)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	log := filepath.Join(e.dir, "n1", "logs", e.rcID("hello")+".main.0", "web.log")
	_, lines := e.startRcctl("logs", "hello-main-0", "-f")
	e.awaitLine(lines, "listening on ")

	const total = 1_000_000
	var followed atomic.Int64
	done := make(chan error, 1)
	go func() { done <- writeNumbered(e.t.Context(), log, total, &followed) }()
	rotations, last := 0, os.FileInfo(nil)
	for followed.Load() < total {
		line, ok := <-lines
		if want := strings.TrimSuffix(fmt.Sprintf(numberedLine, followed.Load()), "\n"); !ok || line != want {
			e.t.Fatalf("%q was followed (%t), want %q", line, ok, want)
		}
		if n := followed.Add(1); n%1000 > 0 {
			continue
		}
		if now, err := os.Stat(log + ".1"); err == nil && (last == nil || !os.SameFile(now, last)) {
			last = now
			if rotations++; rotations%3 == 0 {
				for _, pid := range e.supervisors(1) {
					_ = syscall.Kill(pid, syscall.SIGKILL) // one that has gone already was killed before
				}
			}
		}
	}
	if err := <-done; err != nil {
		e.t.Fatal(err)
	}
	if rotations < 6 { // those that were seen
		e.t.Errorf("%d rotations", rotations)
	}
	e.keptOnce(log, total)
	e.remember("hello")
	e.crash("hello", 0) // which takes a supervisor, in place of the last one that was killed
	e.within(limit, func() error { return e.converged(e.rcIDs["hello"], 1) })
}

// writeNumbered appends lines to a log as its program does, no more than some megabytes before they are followed. It
// ends with ctx.
func writeNumbered(ctx context.Context, log string, total int64, followed *atomic.Int64) error {
	const ahead = 100_000
	f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for n := range total {
		for n-followed.Load() > ahead {
			if ctx.Err() != nil { // the scenario has failed
				return ctx.Err()
			}
			goruntime.Gosched()
		}
		if _, err := fmt.Fprintf(f, numberedLine, n); err != nil {
			return err
		}
	}
	return nil
}

// keptOnce fails the test unless what is kept of a log ends with the last of so many lines, and has each once and in
// order.
func (e *env) keptOnce(log string, total int) {
	e.t.Helper()
	e.within(limit, func() error {
		out := e.rcctl("", "logs", "hello-main-0")
		scanner, next := bufio.NewScanner(strings.NewReader(out)), -1
		for scanner.Scan() {
			var n int
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
		if pending, _ := filepath.Glob(log + ".upto-*"); len(pending) > 0 { // or one has just begun
			return fmt.Errorf("a rotation was not ended: %v", pending)
		}
		return nil
	})
}
