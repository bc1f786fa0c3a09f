package runtime

import (
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// MaxIDBytes is the longest ID. With a prefix and a suffix, an ID becomes a file name of at most 255 bytes.
const MaxIDBytes = 200

var validID = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]*$`)

// Validate returns an ErrInvalid that names the first mistake. It does not check the isolation.
func (p Process) Validate() error {
	invalid := func(field string, value any, allowed string) error {
		return fmt.Errorf("%w: %s: %q is not valid; allowed: %s", ErrInvalid, field, fmt.Sprint(value), allowed)
	}
	switch {
	case len(p.ID) > MaxIDBytes || !validID.MatchString(p.ID):
		return invalid("id", p.ID,
			fmt.Sprintf("1 to %d letters, digits, '-', '_' and '.', not starting with '.'", MaxIDBytes))
	case len(p.Command) == 0 || !filepath.IsAbs(p.Command[0]):
		return invalid("command", p.Command, "the absolute path of a program, then its arguments")
	case !filepath.IsAbs(p.Dir):
		return invalid("dir", p.Dir, "an absolute path")
	case !filepath.IsAbs(p.LogPath):
		return invalid("log_path", p.LogPath, "an absolute path")
	case p.LogBytes < 0:
		return invalid("log_bytes", p.LogBytes, "a number of bytes, or zero for no rotation")
	case p.LogKeep < 0:
		return invalid("log_keep", p.LogKeep, "a number of files, or zero for none")
	case p.StopGrace < 0:
		return invalid("stop_grace", p.StopGrace, "a length of time, zero or more")
	case !p.Restart.Policy.Valid():
		return invalid("restart.policy", p.Restart.Policy, "always, on-failure, never")
	case p.Restart.Min < 0:
		return invalid("restart.min", p.Restart.Min, "a length of time, or zero for the default")
	case p.Restart.Max < 0 || p.Restart.Max > 0 && p.Restart.Max < p.Restart.Min:
		return invalid("restart.max", p.Restart.Max, "a length of time not below restart.min, or zero for the default")
	case p.Restart.Stable < 0:
		return invalid("restart.stable", p.Restart.Stable, "a length of time, or zero for the default")
	case p.Watchdog != nil && !filepath.IsAbs(p.Watchdog.Note):
		return invalid("watchdog.note", p.Watchdog.Note, "an absolute path")
	case p.Watchdog != nil && p.Watchdog.Timeout <= 0:
		return invalid("watchdog.timeout", p.Watchdog.Timeout, "a length of time, more than zero")
	}
	if _, ok := p.Signal(); !ok {
		return invalid("stop_signal", p.StopSignal, "the name of a signal, such as SIGINT")
	}
	for _, kv := range p.Env {
		if strings.IndexByte(kv, '=') < 1 {
			return invalid("env", kv, "KEY=value")
		}
	}
	for _, text := range slices.Concat(p.Command, p.Env, []string{p.Dir, p.LogPath}) {
		if strings.ContainsRune(text, 0) {
			return invalid("command, env, dir or log_path", text, "text without a zero byte")
		}
	}
	return nil
}

// Same reports whether two processes are equal. An empty list equals a missing list.
func (p Process) Same(other Process) bool {
	if !slices.Equal(p.Command, other.Command) || !slices.Equal(p.Env, other.Env) {
		return false
	}
	p.Command, p.Env, other.Command, other.Env = nil, nil, nil, nil
	return reflect.DeepEqual(p, other)
}
