package runc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// clearGap is the pause between two tries to remove a cgroup whose processes were killed.
const clearGap = 2 * time.Millisecond

// clearCgroups kills all processes in a container's cgroups and removes the cgroups. It ends with the context.
func clearCgroups(ctx context.Context, cgroup string) error {
	if !path.IsAbs(cgroup) || path.Clean(cgroup) != cgroup || cgroup == "/" {
		return fmt.Errorf("cgroup %q is not valid; allowed: an absolute path that is not the root, without . or .. as "+
			"a name", cgroup)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("find the cgroups: %w", err)
	}
	for _, mount := range hierarchies(string(table)) {
		err = errors.Join(err, clearCgroup(ctx, filepath.Join(mount, cgroup)))
	}
	return err
}

func clearCgroup(ctx context.Context, dir string) error {
	for {
		err := isolate.Remove(dir)
		if err == nil {
			return nil
		}
		_ = isolate.Kill(dir) // the next Remove reports what is left
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(clearGap):
		}
	}
}

// hierarchies returns where cgroup v1 and v2 are mounted (proc_pid_mountinfo(5)).
func hierarchies(mountinfo string) (mounts []string) {
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if len(place) > 4 && len(kind) > 0 && (kind[0] == "cgroup" || kind[0] == "cgroup2") {
			mounts = append(mounts, place[4])
		}
	}
	return mounts
}
