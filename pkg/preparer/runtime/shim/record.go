package shim

import (
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

type desired string

const (
	wantRun  desired = "run"
	wantStop desired = "stop"
)

// record is what the next supervisor must know about one process. It is on the disk in state/<id>.json.
type record struct {
	Spec    localSpec `json:"spec"`
	Desired desired   `json:"desired"`

	PID       int       `json:"pid,omitempty"`   // zero: the process does not run
	Start     uint64    `json:"start,omitempty"` // see proc.Stat.Start; with Boot it identifies the process
	Boot      string    `json:"boot,omitempty"`  // id of the machine's boot in which the process last ran
	StartedAt time.Time `json:"started_at,omitzero"`

	// Container is the id of the container that was created last, until all of it is removed. If PID is zero, it may be
	// half made. Empty: there is none.
	Container string `json:"container,omitempty"`

	Starts    int       `json:"starts,omitempty"`     // since the last Start call
	ShortRuns int       `json:"short_runs,omitempty"` // in a row, each shorter than StableAfter
	LastExit  *pod.Exit `json:"last_exit,omitempty"`
	Done      bool      `json:"done,omitempty"` // it ended, and its policy does not restart it
}

// When Save of the result returns, the file survives a power failure.
func recordsIn(dir string) *durable.Files[record] {
	return &durable.Files[record]{
		Dir: dir, What: "state", Check: (*record).check, Name: func(r *record) string { return r.Spec.ID },
	}
}

func (r *record) check() error {
	if r.Desired != wantRun && r.Desired != wantStop {
		return fmt.Errorf("desired: %q is not valid; allowed: run, stop", r.Desired)
	}
	return r.Spec.validate()
}
