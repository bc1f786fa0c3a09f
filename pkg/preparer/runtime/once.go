package runtime

import (
	"context"
	"fmt"
	"io"
	"os"
)

// Once is a program of RunOnce.
type Once struct {
	// Name is unique among the programs that run at the same time; letters, digits, '-', '_' and '.' only.
	Name      string
	Command   []string // absolute path of the program, then its arguments
	Env       []string // KEY=value; nothing else is inherited
	Dir       string   // working directory, absolute
	Isolation *Isolation
}

// Streams are the program's stdin, stdout and stderr.
type Streams struct {
	Input  *os.File  // stdin; nil: empty
	Output io.Writer // stdout; nil: dropped. If a writer returns an error, the rest is dropped
	Errors io.Writer // stderr; nil: it goes to Output
	// MaxBytes bounds the output of both streams, which then go to Output, with the number of dropped bytes. Zero: no
	// bound.
	MaxBytes int64
}

// Command runs a command by Exec.
type Command func(ctx context.Context, streams Streams) (Exit, error)

// Exit is how a program ended.
type Exit struct {
	Code   int    `json:"code"`             // exit status; -1 when a signal ended it
	Signal string `json:"signal,omitempty"` // such as SIGKILL
}

// OK reports whether the program succeeded.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == "" }

// String is for messages.
func (e Exit) String() string {
	if e.Signal != "" {
		return "was ended by " + e.Signal
	}
	return fmt.Sprintf("ended with exit status %d", e.Code)
}
