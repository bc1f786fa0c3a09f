package shim

import (
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// desired is what a client asked for.
type desired string

const (
	wantRun  desired = "run"
	wantStop desired = "stop"
)

// record is what the supervisor's successor must know about one process, in state/<id>.json.
type record struct {
	Spec    localSpec `json:"spec"`
	Desired desired   `json:"desired"`

	PID       int       `json:"pid,omitempty"`   // zero: nothing of it runs
	Start     uint64    `json:"start,omitempty"` // see stat.start; with Boot it tells the process from a later one
	Boot      string    `json:"boot,omitempty"`  // start of the machine that the record was last run in
	StartedAt time.Time `json:"started_at,omitzero"`

	Starts    int       `json:"starts,omitempty"`     // since the last Start call
	ShortRuns int       `json:"short_runs,omitempty"` // in a row, each shorter than StableAfter
	LastExit  *pod.Exit `json:"last_exit,omitempty"`
	Done      bool      `json:"done,omitempty"` // it ended, nothing of it runs, and its policy leaves it at that
}

// recordsIn are the state files in a directory. Each is replaced as a whole and durable when a call returns.
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
