package runtime

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Errors that every runtime returns and a caller may test for, besides ErrExists.
var (
	// ErrInvalid is returned by Start for a Spec that cannot be run; nothing was changed.
	ErrInvalid = errors.New("not a valid process specification")
	// ErrNotStopped is returned by Remove for a process that is not stopped.
	ErrNotStopped = errors.New("the process is not stopped")
)

// MaxIDBytes bounds the length of an ID: with a prefix and a suffix it is a file name of at most 255 bytes.
const MaxIDBytes = 200

var validID = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*$`)

// Validate reports the first mistake in the spec, as ErrInvalid.
func (s Spec) Validate() error {
	invalid := func(field string, value any, allowed string) error {
		return fmt.Errorf("%w: %s: %q is not valid; allowed: %s", ErrInvalid, field, fmt.Sprint(value), allowed)
	}
	switch {
	case len(s.ID) > MaxIDBytes || !validID.MatchString(s.ID):
		return invalid("id", s.ID, fmt.Sprintf("1 to %d letters, digits, '-', '_' and '.', not starting with '.'", MaxIDBytes))
	case len(s.Command) == 0 || !filepath.IsAbs(s.Command[0]):
		return invalid("command", s.Command, "the absolute path of a program, then its arguments")
	case !filepath.IsAbs(s.Dir):
		return invalid("dir", s.Dir, "an absolute path")
	case !filepath.IsAbs(s.LogPath):
		return invalid("log_path", s.LogPath, "an absolute path")
	case s.LogBytes < 0:
		return invalid("log_bytes", s.LogBytes, "a number of bytes, or zero for no rotation")
	case s.LogKeep < 0:
		return invalid("log_keep", s.LogKeep, "a number of files, or zero for none")
	case s.StopGrace < 0:
		return invalid("stop_grace", s.StopGrace, "a length of time, zero or more")
	case !s.Restart.Policy.Valid():
		return invalid("restart.policy", s.Restart.Policy, "always, on-failure, never")
	case s.Restart.Min < 0:
		return invalid("restart.min", s.Restart.Min, "a length of time, or zero for the default")
	case s.Restart.Max < 0 || s.Restart.Max > 0 && s.Restart.Max < s.Restart.Min:
		return invalid("restart.max", s.Restart.Max, "a length of time not below restart.min, or zero for the default")
	case s.Restart.Stable < 0:
		return invalid("restart.stable", s.Restart.Stable, "a length of time, or zero for the default")
	}
	if _, ok := s.Signal(); !ok {
		return invalid("stop_signal", s.StopSignal, "the name of a signal, such as SIGINT")
	}
	if s.Isolation != nil {
		if err := s.Isolation.Validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	for _, kv := range s.Env {
		if strings.IndexByte(kv, '=') < 1 {
			return invalid("env", kv, "KEY=value")
		}
	}
	for _, text := range slices.Concat(s.Command, s.Env, []string{s.Dir, s.LogPath}) {
		if strings.ContainsRune(text, 0) {
			return invalid("command, env, dir or log_path", text, "text without a zero byte")
		}
	}
	return nil
}

// Cgroup is what the process and all its descendants live in; empty: none.
func (s Spec) Cgroup() string {
	if s.Isolation == nil {
		return ""
	}
	return s.Isolation.Cgroup
}

// Same compares two specs; an empty list equals a missing one, as they do after a trip through JSON.
func (s Spec) Same(other Spec) bool {
	if !slices.Equal(s.Command, other.Command) || !slices.Equal(s.Env, other.Env) {
		return false
	}
	s.Command, s.Env, other.Command, other.Env = nil, nil, nil, nil
	return reflect.DeepEqual(s, other)
}
