package shim

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// The protocol is HTTP with JSON over a unix socket. A preparer may be newer than the supervisor that it meets, so
// fields are only ever added, unknown ones are ignored, and another meaning gets another path.
const (
	startPath   = "/v1/start"   // POST localSpec
	stopPath    = "/v1/stop"    // POST target; answers when nothing runs
	restartPath = "/v1/restart" // POST runtime.RestartRequest; answers when that is under way
	relimitPath = "/v1/relimit" // POST runtime.LimitRequest; answers when what runs is held to them
	removePath  = "/v1/remove"  // POST target
	watchPath   = "/v1/watch"   // GET ?cursor=&base=; answers with snapshot, or 204 when nothing changed for a while
	pingPath    = "/v1/ping"    // GET; answers when every write to the disk that was under way is over
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
	Processes []localStatus `json:"processes"` // in the order of their ids
	// Cursor has the supervisor's random instance in its upper half, so that one from another supervisor never
	// equals the current one and is answered at once.
	Cursor uint64 `json:"cursor"`
	// Base is the cursor that the client has the answer to: Processes are those that have changed since, and none has gone.
	// Zero: they are all, as they always are from a supervisor that knows no base.
	Base uint64 `json:"base,omitempty"`
	// Watchdogs: the supervisor heeds them. One from before there were any does not, and forgets that a specification has one.
	Watchdogs bool `json:"watchdogs,omitempty"`
}

// over returns the snapshot of all processes that an answer makes of its base.
func (s snapshot) over(base snapshot) snapshot {
	if s.Base == 0 {
		return s
	}
	all := make([]localStatus, 0, len(base.Processes)+len(s.Processes))
	rest := base.Processes
	for _, changed := range s.Processes {
		i, found := search(rest, changed.Spec.ID)
		all = append(append(all, rest[:i]...), changed)
		if found {
			i++
		}
		rest = rest[i:]
	}
	return snapshot{Processes: append(all, rest...), Cursor: s.Cursor, Watchdogs: s.Watchdogs}
}

// search returns where a process is, or would be, among others in the order of their ids.
func search(procs []localStatus, id string) (at int, found bool) {
	return slices.BinarySearchFunc(procs, id, func(st localStatus, id string) int { return strings.Compare(st.Spec.ID, id) })
}

// failure is the body of any answer but 2xx.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// kinds tell which error a failure stands for on the other side. An error of no kind stays a text.
var kinds = []struct {
	code   string
	is     error
	status int
}{
	{"leaving", errLeaving, http.StatusServiceUnavailable},
	{"exists", runtime.ErrExists, http.StatusConflict},
	{"not_stopped", runtime.ErrNotStopped, http.StatusConflict},
	{"keeps_limits", runtime.ErrKeepsLimits, http.StatusConflict},
	{"invalid", runtime.ErrInvalid, http.StatusBadRequest},
}

func failureOf(err error) (f failure, status int) {
	for _, kind := range kinds {
		if errors.Is(err, kind.is) {
			return failure{Code: kind.code, Message: err.Error()}, kind.status
		}
	}
	return failure{Code: "error", Message: err.Error()}, http.StatusInternalServerError
}

// remoteError is a failure on the client's side: the supervisor's words, and the sentinel behind them.
type remoteError struct{ failure }

func (e remoteError) Error() string { return e.Message }

// Unwrap returns the sentinel, nil where there is none.
func (e remoteError) Unwrap() error {
	for _, kind := range kinds {
		if kind.code == e.Code {
			return kind.is
		}
	}
	return nil
}
