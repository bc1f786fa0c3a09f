// Package contain keeps a panic in one look at one thing from ending a program that looks after thousands. Only looks
// are contained, with the goroutines that they start: a panic anywhere else ends the process, because nobody could say
// what it left half done.
package contain

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Panic is an error that was a panic. What was written before it may have landed, or not: the fence has to be moved
// before anything is read again.
type Panic struct {
	Value any
	Stack string // of the goroutine that panicked
}

// maxValue bounds what is repeated of a panic's value, in bytes.
const maxValue = 300

// Error says what it was and where.
func (p *Panic) Error() string {
	return fmt.Sprintf("panic: %s, at %s; this is a defect of rcfarm: report it with the stack in the log", field.Cut(fmt.Sprint(p.Value), maxValue), p.at())
}

// at returns the place in the sources that panicked.
func (p *Panic) at() string {
	_, after, ok := strings.Cut(p.Stack, "panic(")
	lines := strings.Split(after, "\n")
	if !ok || len(lines) < 4 {
		return "an unknown place"
	}
	for i := 3; i < len(lines); i += 2 { // function and place take a line each; the first are the runtime's own
		place, _, _ := strings.Cut(strings.TrimSpace(lines[i]), " ")
		if !strings.Contains(place, "/src/runtime/") {
			parts := strings.Split(place, "/")
			return strings.Join(parts[max(0, len(parts)-3):], "/")
		}
	}
	return "an unknown place"
}

// Is returns the panic that an error is or holds, nil for none.
func Is(err error) *Panic {
	p, _ := errors.AsType[*Panic](err)
	return p
}

// Do calls f, and returns a *Panic where f panics.
func Do(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Panic{Value: value, Stack: string(debug.Stack())}
		}
	}()
	return f()
}

// Fatal is to be deferred around what several looks share: a panic in it ends the process, also where the look that
// does it for all is contained. The others would wait for ever.
func Fatal() {
	if value := recover(); value != nil {
		stack := debug.Stack()
		go panic(fmt.Sprintf("%v\n\n%s", value, stack)) // in a goroutine of its own nobody recovers it
		select {}
	}
}
