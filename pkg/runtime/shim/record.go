package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/isolate"
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

const (
	recordSuffix = ".json"
	maxIDBytes   = 200 // with the suffixes a file name of at most 255 bytes
)

var validID = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*$`)

// records keeps the state files. Each is replaced as a whole and durable when a call returns.
type records struct{ dir string }

// load returns the records by id, and for those that cannot be read the reason. Leftovers of a crash are removed.
func (r records) load() (good map[string]record, bad map[string]error, err error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read supervisor state: %w", err)
	}
	good, bad = map[string]record{}, map[string]error{}
	for _, entry := range entries {
		path := filepath.Join(r.dir, entry.Name())
		if strings.HasSuffix(entry.Name(), recordSuffix+durable.TempSuffix) {
			if err := os.Remove(path); err != nil {
				return nil, nil, fmt.Errorf("remove unfinished state file: %w", err)
			}
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
	return rec, validate(rec.Spec)
}

func (r records) save(rec record) (err error) {
	id := rec.Spec.ID
	defer func() {
		if err != nil {
			err = fmt.Errorf("write state of %s: %w", id, err)
		}
	}()
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(r.dir, id+recordSuffix), data) // Env may hold secrets: owner only
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

// validate reports the first mistake in the spec, as ErrInvalid.
func validate(spec runtime.Spec) error {
	invalid := func(field string, value any, allowed string) error {
		return fmt.Errorf("%w: %s: %q is not valid; allowed: %s", ErrInvalid, field, fmt.Sprint(value), allowed)
	}
	switch {
	case len(spec.ID) > maxIDBytes || !validID.MatchString(spec.ID):
		return invalid("id", spec.ID, fmt.Sprintf("1 to %d letters, digits, '-', '_' and '.', not starting with '.'", maxIDBytes))
	case len(spec.Command) == 0 || !filepath.IsAbs(spec.Command[0]):
		return invalid("command", spec.Command, "the absolute path of a program, then its arguments")
	case !filepath.IsAbs(spec.Dir):
		return invalid("dir", spec.Dir, "an absolute path")
	case !filepath.IsAbs(spec.LogPath):
		return invalid("log_path", spec.LogPath, "an absolute path")
	case spec.LogBytes < 0:
		return invalid("log_bytes", spec.LogBytes, "a number of bytes, or zero for no rotation")
	case spec.LogKeep < 0:
		return invalid("log_keep", spec.LogKeep, "a number of files, or zero for none")
	case spec.StopGrace < 0:
		return invalid("stop_grace", spec.StopGrace, "a length of time, zero or more")
	case !spec.Restart.Policy.Valid():
		return invalid("restart.policy", spec.Restart.Policy, "always, on-failure, never")
	case spec.Restart.Min < 0:
		return invalid("restart.min", spec.Restart.Min, "a length of time, or zero for the default")
	case spec.Restart.Max < 0 || spec.Restart.Max > 0 && spec.Restart.Max < spec.Restart.Min:
		return invalid("restart.max", spec.Restart.Max, "a length of time not below restart.min, or zero for the default")
	}
	if _, ok := spec.Signal(); !ok {
		return invalid("stop_signal", spec.StopSignal, "the name of a signal, such as SIGINT")
	}
	if spec.Isolation != nil {
		if err := isolate.Validate(*spec.Isolation); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	for _, kv := range spec.Env {
		if strings.IndexByte(kv, '=') < 1 {
			return invalid("env", kv, "KEY=value")
		}
	}
	for _, s := range slices.Concat(spec.Command, spec.Env, []string{spec.Dir, spec.LogPath}) {
		if strings.ContainsRune(s, 0) {
			return invalid("command, env, dir or log_path", s, "text without a zero byte")
		}
	}
	return nil
}

// sameSpec compares two specs; an empty list equals a missing one, as they do after a trip through JSON.
func sameSpec(a, b runtime.Spec) bool {
	if !slices.Equal(a.Command, b.Command) || !slices.Equal(a.Env, b.Env) {
		return false
	}
	a.Command, a.Env, b.Command, b.Env = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}
