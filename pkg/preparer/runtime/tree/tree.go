// Package tree deletes directory trees that hostile programs may have made, and gives them to other users.
//
// Who made a tree may have made it 200,000 directories deep, full of links and pipes, so that whoever walks it runs out of
// descriptors, memory or time, or is led somewhere else. So a child process does the walking: this binary, started again by
// package oneshot, as the tree's own user, with next to no capabilities and with limits. What it can be made to do, the tree's
// user could have done. Where it cannot become that user it does nothing. It ends with whoever asked for it.
package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
)

// Arg is the first argument of a process that is to call Exec before anything else, as oneshot.Arg is.
const Arg = "tree-exec"

// killWait is how long, beyond its own limit, a child is given to say how far it came; then it is killed.
const killWait = 5 * time.Second

// ErrTime is returned when the time was over before the work was done. What was done stays done.
var ErrTime = errors.New("the time allowed for it is over")

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

// order is what a child is told, by its second argument as JSON. Its input is the directory.
type order struct {
	Op    string        `json:"op"`
	As    Owner         `json:"as"`
	To    Owner         `json:"to"`
	Limit time.Duration `json:"limit"`
}

// answer is a child's only word.
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
func run(ctx context.Context, dir *os.File, o order) (a answer, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %s as user %d: %w", o.Op, dir.Name(), o.As.UID, err)
		}
	}()
	input, err := json.Marshal(o)
	if err != nil {
		return answer{}, err
	}
	output, outputEnd, err := os.Pipe()
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = output.Close() }()
	ctx, cancel := context.WithTimeout(ctx, o.Limit+killWait)
	defer cancel()
	exit, err := oneshot.Run(ctx, oneshot.Command{
		Argv: []string{"/proc/self/exe", Arg, string(input)}, Dir: "/", Direct: true, Input: dir, Output: outputEnd,
	})
	_ = outputEnd.Close()
	if err != nil {
		return answer{}, err
	}
	said, err := io.ReadAll(output)
	switch {
	case err != nil:
		return answer{}, err
	case json.Unmarshal(said, &a) != nil:
		return answer{}, fmt.Errorf("its process %s without an answer: %.300s", exit, said)
	case a.Error != "":
		return a, &childError{a}
	case a.Late:
		return a, ErrTime
	}
	return a, nil
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
const dirFD = 0

// Exec is the whole life of a child. It never returns.
func Exec() {
	var o order
	if len(os.Args) != 3 || json.Unmarshal([]byte(os.Args[2]), &o) != nil {
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(carryOut(o)); err != nil {
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
