package isolate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// ErrInUse means that the processes use more memory than a new limit allows. Nothing has changed.
var ErrInUse = errors.New("it uses more memory than that")

// The least memory that must be free below a new limit, because the use changes after it was read, and because each
// processor counts some memory in advance.
const (
	leastSpare = 1 << 20 // bytes
	spareShare = 10      // one part in ten of what is used
)

// Relimit replaces the limits of CPU and memory of a cgroup by the limits of an isolation. It ignores limits of
// controllers that the cgroup does not have. If the cgroup is gone, nothing changes. After an error, Relimit has
// restored the former limits. An error to test for: ErrInUse.
func Relimit(dir string, iso confine.Isolation) error {
	var before []confine.Setting
	for _, wanted := range confine.Settings(iso) {
		now, has := readSetting(dir, wanted.File)
		if !has || now == wanted.Value {
			continue
		}
		err := error(nil)
		if wanted.File == memoryMax {
			err = spares(dir, now, wanted.Value)
		}
		if err == nil {
			err = confine.Write(dir, wanted.File, wanted.Value)
		}
		if err != nil && !confine.Gone(err) {
			return errors.Join(fmt.Errorf("limit cgroup %s: %s to %s: %w", dir, wanted.File, wanted.Value, err),
				restore(dir, before))
		}
		before = append(before, confine.Setting{File: wanted.File, Value: now})
	}
	return nil
}

func restore(dir string, settings []confine.Setting) error {
	var errs []error
	for _, was := range slices.Backward(settings) {
		if err := confine.Write(dir, was.File, was.Value); err != nil && !confine.Gone(err) {
			errs = append(errs, fmt.Errorf("%s back to %s: %w", was.File, was.Value, err))
		}
	}
	return errors.Join(errs...)
}

func readSetting(dir, file string) (value string, has bool) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(data)), err == nil
}

// At memoryMax the kernel reclaims memory. If it cannot reclaim enough, it kills processes.
const memoryMax = "memory.max"

// spares returns ErrInUse if the kernel might kill processes because of the next memory limit. Memory that the kernel
// can drop at once, such as cached files that were read some time ago, does not count as used.
func spares(dir, now, next string) error {
	limit, err := strconv.ParseInt(next, 10, 64)
	if err != nil { // no limit is wanted
		return nil //nolint:nilerr // "max" is not a number
	}
	if was, err := strconv.ParseInt(now, 10, 64); err == nil && was <= limit {
		return nil
	}
	text, _ := readSetting(dir, "memory.current")
	used, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("read memory.current: %w", err)
	}
	used = max(0, used-counters(dir, "memory.stat")["inactive_file"])
	if spare := max(leastSpare, used/spareShare); used+spare > limit {
		return fmt.Errorf("%w: it uses %d bytes, and %d more have to be free", ErrInUse, used, spare)
	}
	return nil
}
