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

// ErrInUse says that more memory is in use than a new limit leaves. Nothing was changed.
var ErrInUse = errors.New("it uses more memory than that")

// What is free below a new limit of memory at the least: the use goes on while it is read, and each processor counts
// some of it ahead.
const (
	leastSpare = 1 << 20 // bytes
	spareShare = 10      // a part of what is used: one in so many
)

// Relimit holds what runs in a cgroup to the limits of CPU and memory of an isolation, whatever it was held to before.
// Controllers that the cgroup does not have are left out, as at the start of a process. One that holds them already is
// left alone, and so is one that is gone. After an error the limits are those of before; one to test for: ErrInUse.
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
			return errors.Join(fmt.Errorf("limit cgroup %s: %s to %s: %w", dir, wanted.File, wanted.Value, err), restore(dir, before))
		}
		before = append(before, confine.Setting{File: wanted.File, Value: now})
	}
	return nil
}

// restore writes back what files of a cgroup held, the latest first.
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

// memoryMax is the limit below which the kernel kills what it cannot take memory from.
const memoryMax = "memory.max"

// spares returns ErrInUse where the kernel might kill for a lower limit of memory. What it can drop at once, files
// that were read a while ago, is not in use.
func spares(dir, now, next string) error {
	limit, err := strconv.ParseInt(next, 10, 64)
	if err != nil { // there is to be none
		return nil //nolint:nilerr // "max" is no number
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
