package shim

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// The protocol is HTTP with JSON over a unix socket. A preparer may be newer than its supervisor. Therefore fields are
// only added, unknown fields are ignored, and a changed meaning gets a new path.
const (
	startPath   = "/v1/start"   // POST localSpec
	containPath = "/v1/contain" // POST localSpec with a container, which an older supervisor would ignore
	stopPath    = "/v1/stop"    // POST target; answers when no process of the target runs
	restartPath = "/v1/restart" // POST runtime.RestartRequest; answers when the restart is under way
	relimitPath = "/v1/relimit" // POST runtime.LimitRequest; answers when the running process has the limits
	removePath  = "/v1/remove"  // POST target
	watchPath   = "/v1/watch"   // GET ?cursor=&base=; answers with snapshot, or 204 if nothing changed for a while
	pingPath    = "/v1/ping"    // GET; answers when all writes to the disk that were under way are over
)

// maxRequest is the largest request of a client, in bytes. A manifest has at most 64 KiB.
const maxRequest = 4 << 20

type target struct {
	ID string `json:"id"`
}

// snapshot is the answer to a watch. A client that still has an earlier answer sends its cursor as the base, and gets
// only the changes since.
type snapshot struct {
	Processes []localStatus `json:"processes"` // in the order of their ids
	// Cursor has a random number of this supervisor in its upper half. So a watch with a cursor from another supervisor
	// is answered at once.
	Cursor uint64 `json:"cursor"`
	// Base is the client's base, if Processes has only the processes that have changed since. Zero: Processes has all
	// processes. An old supervisor always sends zero.
	Base uint64 `json:"base,omitempty"`
	// Watchdogs: the supervisor supports watchdogs. An older supervisor drops the field Watchdog from specifications.
	Watchdogs bool `json:"watchdogs,omitempty"`
	// Containers: the supervisor supports containers.
	Containers bool `json:"containers,omitempty"`
}

// over applies the changes in s to the snapshot base.
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
	return snapshot{
		Processes: append(all, rest...), Cursor: s.Cursor, Watchdogs: s.Watchdogs, Containers: s.Containers,
	}
}

// If the sorted list does not have the process, search returns where it belongs.
func search(procs []localStatus, id string) (at int, found bool) {
	return slices.BinarySearchFunc(procs, id,
		func(st localStatus, id string) int { return strings.Compare(st.Spec.ID, id) })
}

type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// kinds has the errors that the client returns for the codes of failures. A failure with another code has only a text.
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

// remoteError is a failure that the supervisor sent.
type remoteError struct{ failure }

func (r remoteError) Error() string { return r.Message }

func (r remoteError) Unwrap() error {
	for _, kind := range kinds {
		if kind.code == r.Code {
			return kind.is
		}
	}
	return nil
}
