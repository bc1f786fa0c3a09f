// Package contain handles panics. A panic in the look at one of thousands of objects must not end the program. A panic
// in other code ends the process, because it is not known what was left half done.
package contain

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Panic is an error for a recovered panic. Writes before the panic may still land. So the fence must be bumped before
// anything is read again.
type Panic struct {
	Value any
	Stack string // of the goroutine that panicked
}

// maxValue is in bytes.
const maxValue = 300

// Error has the panic's value and place.
func (p *Panic) Error() string {
	return fmt.Sprintf("panic: %s, at %s; this is a defect of rcfarm: report it with the stack in the log",
		field.Cut(fmt.Sprint(p.Value), maxValue), p.at())
}

func (p *Panic) at() string {
	_, after, ok := strings.Cut(p.Stack, "panic(")
	lines := strings.Split(after, "\n")
	if !ok || len(lines) < 4 {
		return "an unknown place"
	}
	for i := 3; i < len(lines); i += 2 { // two lines for each call; the first are of the Go runtime
		place, _, _ := strings.Cut(strings.TrimSpace(lines[i]), " ")
		if !strings.Contains(place, "/src/runtime/") {
			parts := strings.Split(place, "/")
			return strings.Join(parts[max(0, len(parts)-3):], "/")
		}
	}
	return "an unknown place"
}

// Is returns the panic in an error, or nil if the error has none.
func Is(err error) *Panic {
	p, _ := errors.AsType[*Panic](err)
	return p
}

// Do calls f, and returns a *Panic if f panics.
func Do(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Panic{Value: value, Stack: string(debug.Stack())}
		}
	}()
	return f()
}

// Fatal must be deferred around work that several looks share. If it panics, Fatal ends the process, because the other
// looks would wait for ever.
func Fatal() {
	if value := recover(); value != nil {
		stack := debug.Stack()
		go panic(fmt.Sprintf("%v\n\n%s", value, stack)) // in a new goroutine, where nothing recovers it
		select {}
	}
}
