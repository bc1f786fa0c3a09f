package runtime

import (
	"context"
	"fmt"
	"io"
	"os"
)

// Once is a program that runs once, to its end.
type Once struct {
	// Name tells it from all others that run at the same time on the node; letters, digits, '-', '_' and '.' only.
	Name      string
	Command   []string // absolute path of the program, then its arguments
	Env       []string // KEY=value; nothing else is inherited
	Dir       string   // working directory, absolute
	Isolation *Isolation
}

// Streams are what a program reads and writes.
type Streams struct {
	Input          *os.File  // the program's own; nil: nothing to read
	Output, Errors io.Writer // nil: nowhere, and where Output goes. What a writer does not take is dropped
	// MaxBytes bounds what it writes. Then stdout and stderr both go to Output, and what is more is dropped and counted there. Zero:
	// nothing is bounded or mixed.
	MaxBytes int64
}

// Command is a command that Exec is to run, whatever its streams are.
type Command func(ctx context.Context, streams Streams) (Exit, error)

// Exit is how a program ended that ran once.
type Exit struct {
	Code   int    `json:"code"`             // exit status; -1 when a signal ended it
	Signal string `json:"signal,omitempty"` // such as SIGKILL
}

// OK reports whether the program succeeded.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == "" }

// String says in words how it ended.
func (e Exit) String() string {
	if e.Signal != "" {
		return "was ended by " + e.Signal
	}
	return fmt.Sprintf("ended with exit status %d", e.Code)
}
