package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// desired is what a client asked for.
type desired string

const (
	wantRun  desired = "run"
	wantStop desired = "stop"
)

// record is what the supervisor's successor must know about one process, in state/<id>.json.
type record struct {
	Spec    runtime.Spec `json:"spec"`
	Desired desired      `json:"desired"`

	PID       int       `json:"pid,omitempty"`   // zero: nothing of it runs
	Start     uint64    `json:"start,omitempty"` // see stat.start; with Boot it tells the process from a later one
	Boot      string    `json:"boot,omitempty"`  // start of the machine that the record was last run in
	StartedAt time.Time `json:"started_at,omitzero"`

	Starts    int       `json:"starts,omitempty"`     // since the last Start call
	ShortRuns int       `json:"short_runs,omitempty"` // in a row, each shorter than StableAfter
	LastExit  *pod.Exit `json:"last_exit,omitempty"`
	Done      bool      `json:"done,omitempty"` // it ended, nothing of it runs, and its policy leaves it at that
}

const recordSuffix = ".json"

// records keeps the state files. Each is replaced as a whole and durable when a call returns.
type records struct {
	dir     string
	reserve *durable.Reserve
}

// load returns the records by id, and for those that cannot be read the reason. Leftovers of a crash are removed.
func (r records) load() (good map[string]record, bad map[string]error, err error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read supervisor state: %w", err)
	}
	good, bad = map[string]record{}, map[string]error{}
	for _, entry := range entries {
		path := filepath.Join(r.dir, entry.Name())
		if strings.HasSuffix(entry.Name(), durable.TempSuffix) {
			_ = os.Remove(path) // one that stays takes some room, and is written over
			continue
		}
		id, ok := strings.CutSuffix(entry.Name(), recordSuffix)
		if !ok {
			continue
		}
		rec, err := readRecord(path, id)
		if err != nil {
			bad[id] = fmt.Errorf("read state of %s: %w", id, err)
			continue
		}
		good[id] = rec
	}
	return good, bad, nil
}

func readRecord(path, id string) (record, error) {
	var rec record
	data, err := os.ReadFile(path)
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, err
	}
	if rec.Spec.ID != id {
		return rec, fmt.Errorf("it holds the state of %q", rec.Spec.ID)
	}
	if rec.Desired != wantRun && rec.Desired != wantStop {
		return rec, fmt.Errorf("desired: %q is not valid; allowed: run, stop", rec.Desired)
	}
	return rec, rec.Spec.Validate()
}

func (r records) save(rec record) error {
	id := rec.Spec.ID
	data, err := json.Marshal(rec)
	if err == nil {
		err = r.reserve.WriteFile(filepath.Join(r.dir, id+recordSuffix), data) // Env may hold secrets: owner only
	}
	if err != nil {
		return fmt.Errorf("write state of %s: %w", id, err)
	}
	return nil
}

func (r records) remove(id string) error {
	err := os.Remove(filepath.Join(r.dir, id+recordSuffix))
	if err == nil {
		err = durable.SyncDir(r.dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove state of %s: %w", id, err)
	}
	return nil
}
