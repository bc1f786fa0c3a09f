package runtime

import (
	"encoding/json"
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

// The most that a Container may have. A configuration has the seccomp profile, and arguments and variables.
const (
	maxConfig  = 3 << 20 // bytes
	maxLayers  = 256
	maxScratch = 64
	maxNumber  = 1<<32 - 2 // of users and groups; the next number means "no change"
)

// Validate returns an ErrInvalid that names the first mistake.
func (c *Container) Validate() error {
	invalid := func(name string, value any, allowed string) error {
		return fmt.Errorf("%w: container.%s: %q is not valid; allowed: %s", ErrInvalid, name, fmt.Sprint(value),
			allowed)
	}
	const directory = "the absolute path of a directory that is not /, without . and .."
	if len(c.Config) > maxConfig {
		return invalid("config", fmt.Sprint(len(c.Config), " bytes"), fmt.Sprintf("at most %d bytes", maxConfig))
	}
	var config struct{ Root struct{ Path string } }
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return invalid("config", err, "a JSON object of the OCI runtime specification")
	}
	switch {
	case !cleanPath(c.Dir):
		return invalid("dir", c.Dir, directory)
	case config.Root.Path != c.Rootfs():
		return invalid("config.root.path", config.Root.Path, c.Rootfs())
	case len(c.Layers) == 0 || len(c.Layers) > maxLayers:
		return invalid("layers", fmt.Sprint(len(c.Layers), " layers"), fmt.Sprintf("1 to %d", maxLayers))
	case c.UID < 0 || c.UID > maxNumber:
		return invalid("uid", c.UID, fmt.Sprintf("0 to %d", maxNumber))
	case c.GID < 0 || c.GID > maxNumber:
		return invalid("gid", c.GID, fmt.Sprintf("0 to %d", maxNumber))
	case c.Scratch < 0 || c.Scratch > maxScratch:
		return invalid("scratch", c.Scratch, fmt.Sprintf("0 to %d", maxScratch))
	}
	for i, layer := range c.Layers {
		if !cleanPath(layer) {
			return invalid(fmt.Sprintf("layers[%d]", i), layer, directory)
		}
	}
	if ids := c.IDs; ids != nil &&
		(ids.First == 0 || ids.Size == 0 || uint64(ids.First)+uint64(ids.Size)-1 > maxNumber) {
		return invalid("ids", fmt.Sprintf("%d numbers from %d", ids.Size, ids.First),
			fmt.Sprintf("1 or more numbers from 1 to %d", maxNumber))
	}
	return nil
}

// Rootfs is the directory at which the layers are mounted.
func (c *Container) Rootfs() string { return filepath.Join(c.Dir, "rootfs") }

func cleanPath(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && path != "/" && !strings.ContainsRune(path, 0)
}
