package shim

import (
	"errors"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// The protocol is HTTP with JSON over a unix socket. A preparer may be newer than the supervisor that it meets, so
// fields are only ever added, unknown ones are ignored, and another meaning gets another path.
const (
	startPath  = "/v1/start"  // POST runtime.Spec
	stopPath   = "/v1/stop"   // POST target; answers when nothing runs
	removePath = "/v1/remove" // POST target
	watchPath  = "/v1/watch"  // GET ?cursor=&base=; answers with snapshot, or 204 when nothing changed for a while
)

// maxRequest bounds what a client may send, in bytes. A manifest has at most 64 KiB.
const maxRequest = 4 << 20

// target names a process.
type target struct {
	ID string `json:"id"`
}

// snapshot is the answer to a watch. A client that still has the answer to an earlier cursor asks with this as its base, and
// need only be told what has changed since.
type snapshot struct {
	Processes []runtime.Status `json:"processes"` // in the order of their ids
	// Cursor has the supervisor's random instance in its upper half, so that one from another supervisor never
	// equals the current one and is answered at once.
	Cursor uint64 `json:"cursor"`
	// Base is the cursor that the client has the answer to: Processes are those that have changed since, and none has gone.
	// Zero: they are all, as they always are from a supervisor that knows no base.
	Base uint64 `json:"base,omitempty"`
}

// over returns the snapshot of all processes that an answer makes of its base.
func (s snapshot) over(base snapshot) snapshot {
	if s.Base == 0 {
		return s
	}
	all := make([]runtime.Status, 0, len(base.Processes)+len(s.Processes))
	rest := base.Processes
	for _, changed := range s.Processes {
		i, found := slices.BinarySearchFunc(rest, changed.Spec.ID, func(st runtime.Status, id string) int { return strings.Compare(st.Spec.ID, id) })
		all = append(append(all, rest[:i]...), changed)
		if found {
			i++
		}
		rest = rest[i:]
	}
	return snapshot{Processes: append(all, rest...), Cursor: s.Cursor}
}

// failure is the body of any answer but 2xx.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// codes tells which error a failure stands for on the other side. An error without one stays a text.
func codes() map[string]error {
	return map[string]error{
		"exists":      runtime.ErrExists,
		"invalid":     runtime.ErrInvalid,
		"not_stopped": runtime.ErrNotStopped,
		"leaving":     errLeaving,
	}
}

func failureOf(err error) failure {
	for code, sentinel := range codes() {
		if errors.Is(err, sentinel) {
			return failure{Code: code, Message: err.Error()}
		}
	}
	return failure{Code: "error", Message: err.Error()}
}

// remoteError is a failure on the client's side: the supervisor's words, and the sentinel behind them.
type remoteError struct {
	message string
	is      error // nil if there is none
}

func (e *remoteError) Error() string { return e.message }

func (e *remoteError) Unwrap() error { return e.is }

func (f failure) err() error { return &remoteError{message: f.Message, is: codes()[f.Code]} }
