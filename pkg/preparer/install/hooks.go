package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/logfile"
)

const (
	beforeInstall = "before_install"
	afterInstall  = "after_install"
	beforeLaunch  = "before_launch"
	afterLaunch   = "after_launch"
	beforeStop    = "before_stop"
	afterStop     = "after_stop"
	// Programs bin/disable and bin/enable of an artifact, if they exist.
	disable = "disable"
	enable  = "enable"
)

// requiredSuffix ends the file name of a node's hook that must succeed.
const requiredSuffix = ".required"

const maxHookBytes = 1 << 20

// hooksLog is in a pod's log directory. No process's log can have this name.
const hooksLog = "_hooks.log"

type hook struct {
	point    string // before_install, ...
	label    string // names the program for people
	required bool
	timeout  time.Duration
	run      runtime.Once
}

var errHook = errors.New("hook")

// runHooks runs the hooks of a point one after the other, until a required hook fails.
func (v *Version) runHooks(ctx context.Context, progress Progress, point string) error {
	hooks, err := v.hooksAt(point)
	if err != nil {
		return fmt.Errorf("%w %s: %w", errHook, point, err)
	}
	for i := range hooks {
		if err := v.runHook(ctx, progress, &hooks[i]); err != nil {
			return err
		}
	}
	return nil
}

// tryHooks only logs a failure, because a stop must not fail because of a hook. It returns an error only if ctx has
// ended.
func (v *Version) tryHooks(ctx context.Context, progress Progress, point string) error {
	if err := v.runHooks(ctx, progress, point); err != nil && ctx.Err() == nil {
		progress.Failed("hook failed; going on all the same", err)
	}
	return context.Cause(ctx)
}

// hooksAt returns first the node's hooks, then the pod's.
func (v *Version) hooksAt(point string) ([]hook, error) {
	if point == enable || point == disable {
		return v.switches(point)
	}
	hooks, err := v.nodeHooks(point)
	if err != nil {
		return nil, err
	}
	v.M.Hooks.Each(func(name string, h *manifest.Hook) {
		if name != point || err != nil {
			return
		}
		var own hook
		own, err = v.podHook(point, v.M.LaunchableOf(h.Launchable), h.Path, h.Args)
		own.required, own.timeout = h.Required, h.Timeout.Or(manifest.DefaultHookTimeout)
		hooks = append(hooks, own)
	})
	return hooks, err
}

// podHook returns a hook in one of the pod's artifacts, with the isolation of the launchable's processes.
func (v *Version) podHook(point string, l *manifest.Launchable, path string, args []string) (hook, error) {
	if l.Artifact.IsImage() { // the path is in the image, and must not be taken for one of the node
		return hook{}, fmt.Errorf("%s of %s: %w: images have no hooks yet", path, l.Name, ErrManifest)
	}
	iso, err := v.isolation(l)
	if err != nil {
		return hook{}, err
	}
	env := v.env(l)
	env[envHook] = point
	return hook{
		point: point, label: l.Name + ":" + path, timeout: manifest.DefaultHookTimeout,
		run: runtime.Once{
			Command: append([]string{v.Path(l.Name, path)}, v.Expand(l, args)...), Env: joinEnv(env),
			Dir: v.n.home(v.ID), Isolation: iso,
		},
	}, nil
}

// switches returns the programs bin/enable or bin/disable of all artifacts.
func (v *Version) switches(name string) ([]hook, error) {
	var hooks []hook
	for i := range v.M.Launchables {
		l := &v.M.Launchables[i]
		path := "bin/" + name
		if !l.Artifact.HasSwitches() {
			continue
		}
		if CheckProgram(v.Path(l.Name, path)) != nil {
			continue
		}
		h, err := v.podHook(name, l, path, nil)
		if err != nil {
			return nil, err
		}
		hooks = append(hooks, h)
	}
	return hooks, nil
}

// nodeHooks returns the operator's hooks: the executable files in the directories <point> and <point>.d, sorted by
// name. They run as the preparer's user, so they get no environment from the manifest, and their working directory is
// not the pod's home. Otherwise, if a hook starts a program without a path, the pod could choose which program runs.
func (v *Version) nodeHooks(point string) ([]hook, error) {
	if v.n.cfg.HooksDir == "" {
		return nil, nil
	}
	found := map[string]string{} // path by name
	for _, dir := range []string{point, point + ".d"} {
		dir = filepath.Join(v.n.cfg.HooksDir, dir)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read hooks of the node: %w", err)
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			if CheckProgram(path) != nil || !processName.MatchString(entry.Name()) {
				continue
			}
			found[entry.Name()+"\x00"+path] = path
		}
	}
	env := v.nodeEnv(&v.M.Launchables[0])
	env[envPath], env[envHook] = defaultPath, point
	var iso *runtime.Isolation
	if v.n.cfg.Isolation.Limits {
		iso = &runtime.Isolation{UID: os.Getuid(), GID: os.Getgid()}
		v.n.cfg.Isolation.limit(iso, manifest.Resources{})
	}
	var hooks []hook
	for _, key := range slices.Sorted(maps.Keys(found)) {
		hooks = append(hooks, hook{
			point: point, label: found[key], required: strings.HasSuffix(found[key],
				requiredSuffix), timeout: manifest.DefaultHookTimeout,
			run: runtime.Once{Command: []string{found[key]}, Env: joinEnv(env), Dir: "/", Isolation: iso},
		})
	}
	return hooks, nil
}

// runHook leaves no process of the hook behind when it returns, or when the preparer ends.
func (v *Version) runHook(ctx context.Context, progress Progress, h *hook) error {
	log, err := v.openHooksLog()
	if err != nil {
		return fmt.Errorf("%w %s: %w", errHook, h.point, err)
	}
	defer func() { _ = log.Close() }() // an error of the log does not make the hook fail
	began := time.Now()
	fmt.Fprintf(log, "%s %s of version %s: %s\n", began.UTC().Format(time.RFC3339), h.point, v.In.name(), h.label)
	h.run.Name = FileName(v.ID) + "." + h.point
	timeout := fmt.Errorf("was killed after %s", h.timeout)
	limited, cancel := context.WithTimeoutCause(ctx, h.timeout, timeout)
	defer cancel()
	defer progress.During(fmt.Sprintf("hook %s runs: %s; it has %s from the start", h.point, h.label, h.timeout))()
	v.n.cfg.Step("hook " + h.point)
	exit, err := v.n.cfg.Runtime.RunOnce(limited, h.run, runtime.Streams{Output: log, MaxBytes: maxHookBytes})
	if err == nil && !exit.OK() {
		err = errors.New(exit.String())
	}
	v.n.cfg.Step("hook " + h.point + " done")
	took := time.Since(began).Round(time.Millisecond)
	if err == nil {
		fmt.Fprintf(log, "%s %s: done in %s\n", time.Now().UTC().Format(time.RFC3339), h.point, took)
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	v.n.cfg.HookFailed()
	fmt.Fprintf(log, "%s %s: %v, after %s\n", time.Now().UTC().Format(time.RFC3339), h.point, err, took)
	err = fmt.Errorf("%w %s: %s %w; its output is in %s", errHook, h.point, h.label, err, log.Name())
	if h.required {
		return err
	}
	progress.Failed("optional hook failed", err)
	return nil
}

// openHooksLog first rotates a large log. At this moment no hook writes to it.
func (v *Version) openHooksLog() (*os.File, error) {
	if err := os.MkdirAll(v.n.Logs(v.ID), 0o750); err != nil {
		return nil, fmt.Errorf("make log directory: %w", err)
	}
	path := filepath.Join(v.n.Logs(v.ID), hooksLog)
	if info, err := os.Lstat(path); err == nil && info.Size() > v.n.cfg.LogBytes {
		if err := logfile.Shift(path, path, v.n.cfg.LogKeep); err != nil {
			return nil, fmt.Errorf("rotate log of hooks: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open log of hooks: %w", err)
	}
	return f, nil
}

// LaunchHooks reports whether any hooks must run after the start of the version's processes.
func (v *Version) LaunchHooks() bool {
	if v.n.cfg.HooksDir != "" || v.M.Hooks != nil && v.M.Hooks.AfterLaunch != nil {
		return true
	}
	programs, err := v.switches(enable)
	return err != nil || len(programs) > 0
}
