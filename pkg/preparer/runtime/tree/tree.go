// Package tree deletes directory trees that hostile programs may have made, and gives them to other users.
//
// Who made a tree may have made it 200,000 directories deep, full of links and pipes, so that whoever walks it runs out of
// descriptors, memory or time, or is led somewhere else. So a child process does the walking: this binary, started again, as
// the tree's own user, with next to no capabilities and with limits. What it can be made to do, the tree's user could have
// done. Where it cannot become that user it does nothing. It ends with its parent.
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

// Arg is the first argument of a process that is to call Exec before anything else.
const Arg = "tree-exec"

// killWait is how long, beyond its own limit, a child is given to say how far it came.
const killWait = 5 * time.Second

// ErrTime is returned when the time was over before the work was done. What was done stays done.
var ErrTime = errors.New("the time allowed for it is over")

// ErrSurvived is returned when a child did not end although it was killed, as one in uninterruptible sleep.
var ErrSurvived = errors.New("its process is not dead yet " + killWait.String() + " after it was killed")

// Owner is whom files belong to.
type Owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Left is what a deletion could not remove.
type Left struct {
	Empty   bool   `json:"empty,omitempty"`   // nothing is left
	Removed int    `json:"removed,omitempty"` // entries that are not where they were
	UID     int    `json:"uid,omitempty"`     // whom a directory belongs to that kept something
	Why     string `json:"why,omitempty"`     // what the kernel said
}

// The two things that a child does.
const (
	opDelete = "delete"
	opGive   = "give"
)

// order is what a child is told. It reads it from its input, whose end makes it end too.
type order struct {
	Op    string        `json:"op"`
	As    Owner         `json:"as"`
	To    Owner         `json:"to"`
	Limit time.Duration `json:"limit"`
}

// answer is a child's last word.
type answer struct {
	Left  Left          `json:"left"`
	Late  bool          `json:"late,omitempty"`
	Error string        `json:"error,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"` // behind Error, if there is one
}

// Delete removes what is in dir, as that user and for so long, and says what it could not remove. The directory itself
// stays; it must belong to the user. It returns ErrTime when the time is over; then it goes on where it was next time. What a
// directory of another user holds stays, but is moved to where Delete as that other user finds it.
func Delete(ctx context.Context, dir *os.File, as Owner, limit time.Duration) (Left, error) {
	a, err := run(ctx, dir, order{Op: opDelete, As: as, Limit: limit})
	return a.Left, err
}

// Give gives the directory, and all in it that belongs to the one user, to the other one: also files with several names, if
// all of these are in it. What belongs to somebody else, or has a name elsewhere, stays as it is. The directory itself
// comes last, so that what was interrupted is done again. Only root can do that.
func Give(ctx context.Context, dir *os.File, from, to Owner, limit time.Duration) error {
	_, err := run(ctx, dir, order{Op: opGive, As: from, To: to, Limit: limit})
	return err
}

// run starts a child and returns what it has said.
func run(ctx context.Context, dir *os.File, o order) (answer, error) {
	what := func(err error) error { return fmt.Errorf("%s %s as user %d: %w", o.Op, dir.Name(), o.As.UID, err) }
	input, err := json.Marshal(o)
	if err != nil {
		return answer{}, what(err)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Limit+killWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", Arg) // killed at the end of ctx
	cmd.Args[0] = os.Args[0]
	cmd.Env, cmd.Dir = []string{}, "/"
	cmd.ExtraFiles = []*os.File{dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's signals are for the caller
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	order, err := cmd.StdinPipe() // open until the child has ended: its end is ours
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
		said := strings.TrimSpace(stderr.String())
		return answer{}, what(fmt.Errorf("its process ended without an answer: %w: %.300s", errors.Join(err, writeErr), said))
	case a.Error != "":
		return a, what(&childError{a})
	case a.Late:
		return a, what(ErrTime)
	}
	return a, nil
}

// expired returns a channel that is closed some time after the context has ended.
func expired(ctx context.Context) <-chan struct{} {
	late := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(killWait, func() { close(late) }) })
	return late
}

// childError is what went wrong in a child.
type childError struct{ answer answer }

func (e *childError) Error() string { return e.answer.Error }

func (e *childError) Unwrap() error {
	if e.answer.Errno == 0 {
		return nil
	}
	return e.answer.Errno
}

// dirFD is the descriptor of the directory in the child.
const dirFD = 3

// Exec is the whole life of a child. It never returns.
func Exec() {
	var o order
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		os.Exit(1) // nobody is left to be told
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is all that matters
		syscall.Exit(1)
	}()
	a := carryOut(o)
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		syscall.Exit(1)
	}
	syscall.Exit(0) // at once: os.Exit of a binary built with the race detector waits a second
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
