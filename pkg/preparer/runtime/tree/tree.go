// Package tree deletes directory trees, and changes their owner, although a hostile program may have made them.
//
// Such a tree may be 200,000 directories deep, and full of links and pipes. A process that walks it may run out of
// descriptors, memory or time, or follow links out of the tree. So a child process walks the tree: this binary, started
// again as the tree's own user, with limits and almost no capabilities. A hostile tree cannot make the child do more
// than that user is allowed to do. The child ends when its parent ends.
package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Arg is the first argument of a process that must call Exec before anything else.
const Arg = "tree-exec"

// killWait is how long a child may take, after its limit is over, to send its answer.
const killWait = 5 * time.Second

// ErrTime means that the time was over. The part of the work that is done stays done.
var ErrTime = errors.New("the time allowed for it is over")

// ErrSurvived means that a child was killed and has not ended in time, for example because of uninterruptible sleep.
var ErrSurvived = errors.New("its process is not dead yet " + killWait.String() + " after it was killed")

// Owner is the owner of files.
type Owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Left is what a deletion could not remove.
type Left struct {
	Empty   bool   `json:"empty,omitempty"`   // nothing is left
	Removed int    `json:"removed,omitempty"` // entries that were removed or moved
	UID     int    `json:"uid,omitempty"`     // owner of a directory that is not empty
	Why     string `json:"why,omitempty"`     // the kernel's error
}

const (
	opDelete = "delete"
	opGive   = "give"
)

// The child reads its order from stdin, and ends when stdin ends.
type order struct {
	Op    string        `json:"op"`
	As    Owner         `json:"as"`
	To    Owner         `json:"to"`
	Limit time.Duration `json:"limit"`
}

type answer struct {
	Left  Left          `json:"left"`
	Late  bool          `json:"late,omitempty"`
	Error string        `json:"error,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"` // the kernel's error in Error, if any
}

// Delete removes the content of dir with the rights of one user (as), who must own dir. It keeps dir. It returns what
// it could not remove. When limit is over, it returns ErrTime, and another call continues the work. Directories of
// other users that are not empty are moved up in dir, so that a Delete as their owner finds them.
func Delete(ctx context.Context, dir *os.File, as Owner, limit time.Duration) (Left, error) {
	a, err := run(ctx, dir, order{Op: opDelete, As: as, Limit: limit})
	return a.Left, err
}

// Give makes the second user (to) the owner of dir, and of everything in dir that belongs to the first user (from). A
// file with names outside dir keeps its owner. Give changes dir itself last. So after an interruption, the owner of dir
// shows that Give must be called again. Only root can call Give.
func Give(ctx context.Context, dir *os.File, from, to Owner, limit time.Duration) error {
	_, err := run(ctx, dir, order{Op: opGive, As: from, To: to, Limit: limit})
	return err
}

func run(ctx context.Context, dir *os.File, o order) (answer, error) {
	what := func(err error) error { return fmt.Errorf("%s %s as user %d: %w", o.Op, dir.Name(), o.As.UID, err) }
	input, err := json.Marshal(o)
	if err != nil {
		return answer{}, what(err)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Limit+killWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", Arg) // kills the child when ctx ends
	cmd.Args[0] = os.Args[0]
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.ExtraFiles = []*os.File{dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that a terminal's signals reach only the caller
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	order, err := cmd.StdinPipe() // stays open until the child has ended, because the child ends when it is closed
	if err != nil {
		return answer{}, what(err)
	}
	if err := cmd.Start(); err != nil {
		return answer{}, what(err)
	}
	_, writeErr := order.Write(input)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-expired(ctx):
		return answer{}, what(ErrSurvived)
	}
	var a answer
	switch {
	case context.Cause(ctx) != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return answer{}, context.Cause(ctx)
	case json.Unmarshal([]byte(stdout.String()), &a) != nil:
		printed := strings.TrimSpace(stderr.String())
		return answer{}, what(fmt.Errorf("its process ended without an answer: %w: %.300s",
			errors.Join(err, writeErr), printed))
	case a.Error != "":
		return a, what(&childError{a})
	case a.Late:
		return a, what(ErrTime)
	}
	return a, nil
}

// expired returns a channel that is closed killWait after the end of the context.
func expired(ctx context.Context) <-chan struct{} {
	late := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(killWait, func() { close(late) }) })
	return late
}

type childError struct{ answer answer }

func (c *childError) Error() string { return c.answer.Error }

func (c *childError) Unwrap() error {
	if c.answer.Errno == 0 {
		return nil
	}
	return c.answer.Errno
}

const dirFD = 3

// Exec runs the child, and never returns.
func Exec() {
	var o order
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		os.Exit(1) // no process is left to report to
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // only the end of stdin matters
		syscall.Exit(1)
	}()
	a := carryOut(o)
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		syscall.Exit(1)
	}
	syscall.Exit(0) // not os.Exit, which waits a second in a binary with the race detector
}

func carryOut(o order) (a answer) {
	deadline := time.Now().Add(o.Limit)
	err := restrict(o)
	if err == nil {
		switch o.Op {
		case opDelete:
			d := deleter{root: dirFD, as: o.As, deadline: deadline}
			err = d.run()
			a.Left = d.left
		case opGive:
			g := giver{from: o.As, to: o.To, deadline: deadline}
			err = g.run(dirFD)
		default:
			err = fmt.Errorf("op %q is not valid; allowed: %s, %s", o.Op, opDelete, opGive)
		}
	}
	if errors.Is(err, ErrTime) {
		a.Late = true
	} else if err != nil {
		a.Error = err.Error()
		_ = errors.As(err, &a.Errno)
	}
	return a
}
