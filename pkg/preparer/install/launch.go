package install

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// maxSpecID is in bytes. With a suffix, the id must still be a valid file name.
const maxSpecID = 190

// SpecID returns the id of one process of one version. It contains the revision: if a pod returns to an earlier digest,
// its processes must not have the ids of stopped ones.
func SpecID(id pod.Identity, in *Installed, process string) string {
	full := fmt.Sprintf("%s.%s.%s.%d", FileName(id), process, Short(in.Made()), in.Revision)
	if len(full) <= maxSpecID {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	return full[:maxSpecID-17] + "." + hex.EncodeToString(sum[:8])
}

// SpecIDs returns the ids of all processes.
func SpecIDs(id pod.Identity, in *Installed) []string {
	ids := make([]string, len(in.Processes))
	for i := range in.Processes {
		ids[i] = SpecID(id, in, in.Processes[i].Name)
	}
	return ids
}

// Limits returns the desired limits of CPU and memory, or nil if the node sets no limits.
func (v *Version) Limits() []runtime.LimitRequest {
	if !v.n.cfg.Isolation.Limits {
		return nil
	}
	all := make([]runtime.LimitRequest, 0, len(v.In.Processes))
	for _, one := range v.In.Processes {
		r := v.M.LaunchableOf(one.Launchable).Resources
		all = append(all,
			runtime.LimitRequest{ID: SpecID(v.ID, v.In, one.Name), CPU: int64(r.CPU), Memory: int64(r.Memory)})
	}
	return all
}

// FirstOf returns the id of the first process of a launchable, or "".
func (v *Version) FirstOf(l *manifest.Launchable) string {
	for _, one := range v.In.Processes {
		if one.Launchable == l.Name {
			return SpecID(v.ID, v.In, one.Name)
		}
	}
	return ""
}

// Spec returns the specification of one process.
func (v *Version) Spec(of Process) (runtime.Spec, error) {
	l := v.M.LaunchableOf(of.Launchable)
	iso, err := v.isolation(l)
	if err != nil {
		return runtime.Spec{}, err
	}
	restart := runtime.Restart{
		Policy: runtime.Always, Min: manifest.DefaultBackoffMin, Max: manifest.DefaultBackoffMax,
		Stable: v.M.ReadyAfter(),
	}
	if r := l.Restart; r != nil {
		restart.Policy, restart.Min, restart.Max = cmp.Or(r.Policy,
			restart.Policy), r.BackoffMin.Or(restart.Min), r.BackoffMax.Or(restart.Max)
	}
	var watchdog *runtime.Watchdog
	if after, ever := v.M.StopsItself(); ever && !v.ID.Local() {
		watchdog = &runtime.Watchdog{Note: v.n.cfg.ContactNote, Timeout: after}
	}
	id := SpecID(v.ID, v.In, of.Name)
	spec := runtime.Spec{Isolation: iso, Process: runtime.Process{
		ID:  id,
		Pod: v.ID, Revision: v.In.Revision, Name: of.Name,
		Command: append([]string{v.Path(l.Name, of.Path)}, v.Expand(l, l.Args)...),
		Env:     joinEnv(v.env(l)), Dir: v.workDir(l),
		LogPath:  filepath.Join(v.n.Logs(v.ID), of.Name+".log"),
		LogBytes: v.n.cfg.LogBytes, LogKeep: v.n.cfg.LogKeep,
		StopGrace: l.StopGrace.Or(manifest.DefaultStopGrace), StopSignal: l.StopSignal,
		Restart: restart, StartSuspended: v.M.Disconnect != nil && v.M.Disconnect.StopAfter != nil, Watchdog: watchdog,
	}}
	if l.Artifact.IsImage() {
		return v.inContainer(l, spec)
	}
	return spec, nil
}

// inContainer adds the container of a launchable with an image.
func (v *Version) inContainer(l *manifest.Launchable, spec runtime.Spec) (runtime.Spec, error) {
	made, c, err := v.containerOf(l, filepath.Join(v.n.cfg.Dir, containersDir, spec.ID))
	if err != nil {
		return runtime.Spec{}, err
	}
	spec.Container = c
	program := made.Spec.Process
	spec.Command, spec.Env, spec.Dir = slices.Clone(program.Args), program.Env, program.Cwd
	// For people. A supervisor from before containers, after a downgrade, finds no program there.
	spec.Command[0] = filepath.Join(c.Dir, "rootfs", filepath.Clean("/"+spec.Command[0]))
	if spec.StopSignal == "" {
		spec.StopSignal = signalName(v.images[l.Name].Config.StopSignal)
	}
	return spec, nil
}

// signalName returns the name of an image's STOPSIGNAL, which may lack SIG, or be a number. It is empty for a signal
// that has no such name.
func signalName(text string) string {
	if n, err := strconv.Atoi(text); err == nil {
		return unix.SignalName(unix.Signal(n))
	}
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if unix.SignalNum(name) == 0 {
		return ""
	}
	return name
}

// Ensure restores files and images that the launch needs and the disk has lost.
func (v *Version) Ensure(ctx context.Context, progress Progress) error {
	defer progress.During(fetchText(v.M))()
	fetched, err := v.n.Fetch(ctx, v.M, progress)
	v.images = fetched.images
	if err != nil || v.present() {
		return err
	}
	v.roots = fetched.dirs
	defer func() { v.roots = nil }()
	return v.layOut()
}

// PrepareLaunch does what comes before the start of the version's processes. some: some of them run already. Otherwise
// the ports must be free.
func (v *Version) PrepareLaunch(ctx context.Context, progress Progress, some bool) error {
	if !some {
		if err := v.n.checkPorts(ctx, v.In.Ports); err != nil {
			return err
		}
	}
	if err := v.takeOverDirs(ctx); err != nil {
		return err
	}
	if err := v.Switch(); err != nil {
		return err
	}
	return v.runHooks(ctx, progress, beforeLaunch)
}

// FinishLaunch runs the hooks after the start.
func (v *Version) FinishLaunch(ctx context.Context, progress Progress) error {
	if err := v.runHooks(ctx, progress, afterLaunch); err != nil {
		return err
	}
	return v.tryHooks(ctx, progress, enable)
}

// PrepareStop runs the hooks before a stop. It fails only when ctx ends.
func (v *Version) PrepareStop(ctx context.Context, progress Progress) error {
	if err := v.tryHooks(ctx, progress, beforeStop); err != nil {
		return err
	}
	return v.tryHooks(ctx, progress, disable)
}

// FinishStop runs the hooks after a stop. It fails only when ctx ends.
func (v *Version) FinishStop(ctx context.Context, progress Progress) error {
	return v.tryHooks(ctx, progress, afterStop)
}
