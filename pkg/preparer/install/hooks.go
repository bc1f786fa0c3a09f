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

// The turning points of a pod's life that hooks stand at.
const (
	beforeInstall = "before_install"
	afterInstall  = "after_install"
	beforeLaunch  = "before_launch"
	afterLaunch   = "after_launch"
	beforeStop    = "before_stop"
	afterStop     = "after_stop"
	// Programs of an artifact that, if they are there, take the pod out of use and put it into use.
	disable = "disable"
	enable  = "enable"
)

// requiredSuffix ends the name of a hook of the node that must succeed.
const requiredSuffix = ".required"

// maxHookBytes bounds what one hook may write into the log.
const maxHookBytes = 1 << 20

// hooksLog is the file in a pod's log directory that its hooks write into. No process can be called so.
const hooksLog = "_hooks.log"

// hook is one program to run.
type hook struct {
	point    string // before_install, ...
	label    string // for people
	required bool
	timeout  time.Duration
	run      runtime.Once
}

// errHook is in every error of a required hook.
var errHook = errors.New("hook")

// runHooks runs what stands at a point, one after the other. A required one that fails keeps the others from being run and
// is the error that comes back; an optional one is logged.
func (v *Version) runHooks(ctx context.Context, tell Progress, point string) error {
	hooks, err := v.hooksAt(point)
	if err != nil {
		return fmt.Errorf("%w %s: %w", errHook, point, err)
	}
	for i := range hooks {
		if err := v.runHook(ctx, tell, &hooks[i]); err != nil {
			return err
		}
	}
	return nil
}

// tryHooks is runHooks for a step that nothing may keep from being done. Only the end of ctx is an error.
func (v *Version) tryHooks(ctx context.Context, tell Progress, point string) error {
	if err := v.runHooks(ctx, tell, point); err != nil && ctx.Err() == nil {
		tell.Failed("hook failed; going on all the same", err)
	}
	return context.Cause(ctx)
}

// hooksAt lists what stands at a point: the node's own first, then the pod's.
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

// podHook is a program of one of the pod's artifacts. It runs as the launchable's processes do.
func (v *Version) podHook(point string, l *manifest.Launchable, path string, args []string) (hook, error) {
	iso, err := v.isolation(l)
	if err != nil {
		return hook{}, err
	}
	env := v.env(l)
	env[envHook] = point
	return hook{
		point: point, label: l.Name + ":" + path, timeout: manifest.DefaultHookTimeout,
		run: runtime.Once{Command: append([]string{v.Path(l.Name, path)}, v.Expand(l, args)...), Env: joinEnv(env), Dir: v.n.home(v.ID), Isolation: iso},
	}, nil
}

// switches are the programs bin/enable or bin/disable of the artifacts that have them.
func (v *Version) switches(name string) ([]hook, error) {
	var hooks []hook
	for i := range v.M.Launchables {
		l := &v.M.Launchables[i]
		path := "bin/" + name
		if l.Artifact.Kind != manifest.ArtifactTar {
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

// nodeHooks are the operator's: executable files in the directories <point> and <point>.d, in the order of their names.
// They run as the preparer does, and so get nothing from the pod's manifest that could bend them, nor the pod's home as their
// directory: what they name without a path would be the pod's choice.
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
			point: point, label: found[key], required: strings.HasSuffix(found[key], requiredSuffix), timeout: manifest.DefaultHookTimeout,
			run: runtime.Once{Command: []string{found[key]}, Env: joinEnv(env), Dir: "/", Isolation: iso},
		})
	}
	return hooks, nil
}

// runHook runs one program. Nothing of it runs when it returns, whatever becomes of the preparer.
func (v *Version) runHook(ctx context.Context, tell Progress, h *hook) error {
	log, err := v.openHooksLog()
	if err != nil {
		return fmt.Errorf("%w %s: %w", errHook, h.point, err)
	}
	defer func() { _ = log.Close() }() // what a hook says is not worth a failure
	began := time.Now()
	fmt.Fprintf(log, "%s %s of version %s: %s\n", began.UTC().Format(time.RFC3339), h.point, v.In.name(), h.label)
	h.run.Name = FileName(v.ID) + "." + h.point
	timeout := fmt.Errorf("was killed after %s", h.timeout)
	limited, cancel := context.WithTimeoutCause(ctx, h.timeout, timeout)
	defer cancel()
	defer tell.During(fmt.Sprintf("hook %s runs: %s; it has %s from the start", h.point, h.label, h.timeout))()
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
	tell.Failed("optional hook failed", err)
	return nil
}

// openHooksLog opens the log for appending, after rotating it when it is large. Nothing writes into it at that time.
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

// LaunchHooks reports whether anything follows the start of the version's processes.
func (v *Version) LaunchHooks() bool {
	if v.n.cfg.HooksDir != "" || v.M.Hooks != nil && v.M.Hooks.AfterLaunch != nil {
		return true
	}
	programs, err := v.switches(enable)
	return err != nil || len(programs) > 0
}
