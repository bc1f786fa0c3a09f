package preparer

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
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/oneshot"
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

// hooksLog is the file in a pod's log directory that its hooks write into. No process can be called so.
const hooksLog = "_hooks.log"

// hook is one program to run.
type hook struct {
	point    string // before_install, ...
	label    string // for people
	required bool
	timeout  time.Duration
	command  oneshot.Command
}

// errHook is in every error of a required hook.
var errHook = errors.New("hook")

// runHooks runs what stands at a point, one after the other. A required one that fails keeps the others from being run and
// is the error that comes back; an optional one is logged.
func (p *Preparer) runHooks(ctx context.Context, e *entry, v *version, point string) error {
	hooks, err := p.hooksAt(v, point)
	if err != nil {
		return fmt.Errorf("%w %s: %w", errHook, point, err)
	}
	for i := range hooks {
		if err := p.runHook(ctx, e, v, &hooks[i]); err != nil {
			return err
		}
	}
	return nil
}

// tryHooks is runHooks for a step that nothing may keep from being done. Only the end of ctx is an error.
func (p *Preparer) tryHooks(ctx context.Context, e *entry, v *version, point string) error {
	if err := p.runHooks(ctx, e, v, point); err != nil && ctx.Err() == nil {
		p.podLog(e.id).WithField(obs.Error, err).Warn("hook failed; going on all the same")
	}
	return context.Cause(ctx)
}

// hooksAt lists what stands at a point: the node's own first, then the pod's.
func (p *Preparer) hooksAt(v *version, point string) ([]hook, error) {
	if point == enable || point == disable {
		return p.switches(v, point)
	}
	hooks, err := p.nodeHooks(v, point)
	if err != nil {
		return nil, err
	}
	v.m.Hooks.Each(func(name string, h *manifest.Hook) {
		if name != point || err != nil {
			return
		}
		var own hook
		own, err = p.podHook(v, point, v.m.LaunchableOf(h.Launchable), h.Path, h.Args)
		own.required, own.timeout = h.Required, h.Timeout.Or(manifest.DefaultHookTimeout)
		hooks = append(hooks, own)
	})
	return hooks, err
}

// podHook is a program of one of the pod's artifacts. It runs as the launchable's processes do.
func (p *Preparer) podHook(v *version, point string, l *manifest.Launchable, path string, args []string) (hook, error) {
	iso, err := p.isolation(v.id, l)
	if err != nil {
		return hook{}, err
	}
	p.cfg.Isolation.confineHook(iso, v.id, point, l.Resources)
	env := p.env(v, l)
	env[envHook] = point
	return hook{
		point: point, label: l.Name + ":" + path, timeout: manifest.DefaultHookTimeout,
		command: oneshot.Command{
			Argv: append([]string{v.path(l.Name, path)}, args...), Env: joinEnv(env), Dir: p.home(v.id), Isolation: iso, OwnCgroup: true,
		},
	}, nil
}

// switches are the programs bin/enable or bin/disable of the artifacts that have them.
func (p *Preparer) switches(v *version, name string) ([]hook, error) {
	var hooks []hook
	for i := range v.m.Launchables {
		l := &v.m.Launchables[i]
		path := "bin/" + name
		if l.Artifact.Kind != manifest.ArtifactTar {
			continue
		}
		if info, err := os.Stat(v.path(l.Name, path)); err != nil || checkProgram(path, info) != nil {
			continue
		}
		h, err := p.podHook(v, name, l, path, nil)
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
func (p *Preparer) nodeHooks(v *version, point string) ([]hook, error) {
	if p.cfg.HooksDir == "" {
		return nil, nil
	}
	found := map[string]string{} // path by name
	for _, dir := range []string{point, point + ".d"} {
		dir = filepath.Join(p.cfg.HooksDir, dir)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read hooks of the node: %w", err)
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			info, err := os.Stat(path)
			if err != nil || checkProgram(path, info) != nil || !processName.MatchString(entry.Name()) {
				continue
			}
			found[entry.Name()+"\x00"+path] = path
		}
	}
	env := p.nodeEnv(v, &v.m.Launchables[0])
	env[envPath], env[envHook] = defaultPath, point
	var iso *runtime.Isolation
	if p.cfg.Isolation.Cgroup != "" {
		iso = &runtime.Isolation{UID: os.Getuid(), GID: os.Getgid()}
		p.cfg.Isolation.confineHook(iso, v.id, point, manifest.Resources{})
	}
	var hooks []hook
	for _, key := range slices.Sorted(maps.Keys(found)) {
		hooks = append(hooks, hook{
			point: point, label: found[key], required: strings.HasSuffix(found[key], requiredSuffix), timeout: manifest.DefaultHookTimeout,
			command: oneshot.Command{Argv: []string{found[key]}, Env: joinEnv(env), Dir: "/", Isolation: iso, OwnCgroup: true},
		})
	}
	return hooks, nil
}

// runHook runs one program. Nothing of it runs when it returns, whatever becomes of the preparer.
func (p *Preparer) runHook(ctx context.Context, e *entry, v *version, h *hook) error {
	log, err := p.openHooksLog(v)
	if err != nil {
		return fmt.Errorf("%w %s: %w", errHook, h.point, err)
	}
	defer func() { _ = log.Close() }() // what a hook says is not worth a failure
	began := time.Now()
	fmt.Fprintf(log, "%s %s of version %s: %s\n", began.UTC().Format(time.RFC3339), h.point, v.name(), h.label)
	h.command.Output = log
	timeout := fmt.Errorf("was killed after %s", h.timeout)
	limited, cancel := context.WithTimeoutCause(ctx, h.timeout, timeout)
	defer cancel()
	defer p.during(e, fmt.Sprintf("hook %s runs: %s; it has %s from the start", h.point, h.label, h.timeout))()
	p.step("hook " + h.point)
	exit, err := p.cfg.Programs.Run(limited, h.command)
	if err == nil && !exit.OK() {
		err = errors.New(exit.String())
	}
	p.step("hook " + h.point + " done")
	took := time.Since(began).Round(time.Millisecond)
	if err == nil {
		fmt.Fprintf(log, "%s %s: done in %s\n", time.Now().UTC().Format(time.RFC3339), h.point, took)
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.cfg.Metrics.hookFailed()
	fmt.Fprintf(log, "%s %s: %v, after %s\n", time.Now().UTC().Format(time.RFC3339), h.point, err, took)
	err = fmt.Errorf("%w %s: %s %w; its output is in %s", errHook, h.point, h.label, err, log.Name())
	if h.required {
		return err
	}
	p.podLog(e.id).WithField(obs.Error, err).Warn("optional hook failed")
	return nil
}

// openHooksLog opens the log for appending, after rotating it when it is large. Nothing writes into it at that time.
func (p *Preparer) openHooksLog(v *version) (*os.File, error) {
	if err := os.MkdirAll(p.logs(v.id), 0o750); err != nil {
		return nil, fmt.Errorf("make log directory: %w", err)
	}
	path := filepath.Join(p.logs(v.id), hooksLog)
	if info, err := os.Lstat(path); err == nil && info.Size() > p.cfg.LogBytes {
		for n := p.cfg.LogKeep; n > 0; n-- {
			from := path
			if n > 1 {
				from = fmt.Sprintf("%s.%d", path, n-1)
			}
			if err := os.Rename(from, fmt.Sprintf("%s.%d", path, n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("rotate log of hooks: %w", err)
			}
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open log of hooks: %w", err)
	}
	return f, nil
}

// launchHooks reports whether anything follows the start of the version's processes.
func (p *Preparer) launchHooks(v *version) bool {
	if p.cfg.HooksDir != "" || v.m.Hooks != nil && v.m.Hooks.AfterLaunch != nil {
		return true
	}
	programs, err := p.switches(v, enable)
	return err != nil || len(programs) > 0
}
