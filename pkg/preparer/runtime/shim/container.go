package shim

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/image/overlay"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/idmap"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/runc"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// leastCreating is how many containers are created at the same time at least. With more, each would take so long that
// it is given up.
const leastCreating = 4

// createWait bounds the creation of a container. startWait is how long runc start may take after it is unwanted.
const (
	createWait = 30 * time.Second
	startWait  = time.Second
)

// The steps of a container's start, in their order, and of its removal; see Config.Step.
const (
	stepRecord  = "record"  // its id
	stepBundle  = "bundle"  // its directory
	stepCreator = "creator" // the stub that becomes runc create
	stepMove    = "move"    // the stub into its cgroup
	stepCreate  = "create"  // runc create
	stepCreated = "created"
	stepNote    = "note" // its pid
	stepStart   = "start"
	stepStarted = "started"
	stepDelete  = "delete"
	stepForget  = "forget" // its id
)

// creation is the cgroup of runc create, beside the container's. No process id has an @.
func (l localSpec) creation() string { return l.cgroup() + "@create" }

// begun reports whether the first process of a container has become its program. Before, its name is runc's.
func begun(pid int) bool {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && !strings.HasPrefix(string(name), "runc:[")
}

func (s *supervisor) runc() (*runc.Runc, error) {
	return runc.New(runc.Config{Program: s.cfg.Runc, State: s.cfg.RuncState})
}

// call calls runc. Meanwhile the reaper takes no new child: it would take runc's exit status, too.
func (s *supervisor) call(runc func() error) error {
	now, err := proc.At(s.boot)
	if err != nil {
		return err
	}
	defer s.family.expect(now)()
	return runc()
}

// launchContainer is launch for a container. The record has the container's id before anything of the container
// exists, and the pid of its first process before the process becomes its program. A later supervisor removes what is
// half made.
func (p *process) launchContainer(recalled context.Context, spec localSpec) (*child, error) {
	if err := p.sweep(recalled, p.current().Container); err != nil {
		return nil, fmt.Errorf("remove the former container: %w", err)
	}
	select {
	case p.sup.creating <- struct{}{}:
		defer func() { <-p.sup.creating }()
	case <-recalled.Done():
		return nil, recalled.Err()
	}
	r, err := p.sup.runc()
	if err != nil {
		return nil, err
	}
	id := strings.ToLower(rand.Text())
	p.sup.cfg.Step(stepRecord)
	err = p.commit(runtime.Starting, "", func(rec *record) {
		rec.PID, rec.Start, rec.Container, rec.Boot = 0, 0, id, p.sup.boot
		rec.Starts++
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(recalled, createWait, runc.ErrTimeout)
	defer cancel()
	c, err := p.createContainer(ctx, spec, r, id)
	if err == nil {
		if err = p.startContainer(ctx, spec, r, id, c); err != nil {
			p.discardContainer(c) //nolint:contextcheck // it must kill the container even if recalled has ended
		}
	}
	if err != nil {
		p.quell(context.Background()) //nolint:contextcheck // the same
		return nil, err
	}
	return c, nil
}

// discardContainer kills a container that has not started.
func (p *process) discardContainer(c *child) {
	p.empty(context.Background(), c, unix.SIGKILL)
	c.status("")
	p.sup.family.forget(c.PID)
	c.Close()
	p.removeCgroup(c)
}

// createContainer returns the first process of a container, which waits for its start.
func (p *process) createContainer(ctx context.Context, spec localSpec, r *runc.Runc, id string) (*child, error) {
	p.sup.cfg.Step(stepBundle)
	if err := makeBundle(ctx, spec); err != nil {
		return nil, fmt.Errorf("prepare the container: %w", err)
	}
	if err := confine.MakeCgroup(spec.creation()); err != nil {
		return nil, err
	}
	now, err := proc.At(p.sup.boot)
	if err != nil {
		return nil, err
	}
	defer p.sup.family.expect(now)()
	call := r.Creation(id, spec.Container.Dir)
	p.sup.cfg.Step(stepCreator)
	stdio, err := openStdio(spec)
	if err != nil {
		return nil, err
	}
	creator, started, err := p.forkCreator(spec.Container, stdio)
	closeStdio(stdio)
	if err != nil {
		return nil, err
	}
	defer started.Close()
	err = p.runCreator(ctx, spec, creator, started, call)
	_ = unix.Kill(-creator.PID, unix.SIGKILL) // if it has ended, it is still a zombie
	_ = creator.Wait(context.Background())    //nolint:contextcheck // it was killed
	exit := creator.status("")
	p.sup.family.forget(creator.PID)
	creator.Close()
	if err != nil {
		return nil, err
	}
	p.sup.cfg.Step(stepCreated)
	if exit.Code != 0 {
		return nil, call.Failure(exit.String())
	}
	pid, err := call.PID()
	if err != nil {
		return nil, err
	}
	c, err := p.sup.family.adopt(pid)
	if err != nil {
		return nil, err
	}
	c.Cgroup, c.Contained = spec.cgroup(), true
	return c, nil
}

// runCreator lets a stub become runc create, and waits for its end.
func (p *process) runCreator(
	ctx context.Context, spec localSpec, creator *child, started *stub.Started, call *runc.Creation,
) error {
	p.sup.cfg.Step(stepMove)
	if err := confine.Write(spec.creation(), confine.MembersFile, strconv.Itoa(creator.PID)); err != nil {
		return fmt.Errorf("move the creation to its cgroup: %w", err)
	}
	p.sup.cfg.Step(stepCreate)
	err := started.Release(stub.Order{Command: call.Command, Env: call.Env, Dir: "/", Privileged: true}, ctx.Done())
	if err == nil && creator.Wait(ctx) != nil {
		err = fmt.Errorf("runc create: %w", context.Cause(ctx))
	}
	return err
}

// forkCreator starts a stub in a mount namespace of its own, in which the container's files are mounted. The namespace
// belongs to a thread, which ends. So no mount is left when the stub has ended, even if this process is killed.
func (p *process) forkCreator(with *runtime.Container, stdio [3]*os.File) (c *child, s *stub.Started, err error) {
	err = overlay.Apart(func() error {
		if err := mountFiles(with); err != nil {
			return err
		}
		var err error
		c, s, err = p.sup.family.fork(stdio)
		return err
	})
	return c, s, err
}

// mountFiles mounts a container's files in the mount namespace of the calling thread.
func mountFiles(c *runtime.Container) error {
	written := filepath.Join(c.Dir, writtenName)
	layers := overlay.Layers{
		Lower: c.Layers, Upper: filepath.Join(written, "upper"), Work: filepath.Join(written, "work"),
	}
	if c.IDs != nil {
		mapping, err := idmap.NewMapping([]idmap.Range{{OnDisk: 0, Shown: c.IDs.First, Size: c.IDs.Size}})
		if err != nil {
			return err
		}
		defer func() { _ = mapping.Close() }()
		layers.Lower = make([]string, len(c.Layers))
		for i, layer := range c.Layers {
			layers.Lower[i] = filepath.Join(written, "layer"+strconv.Itoa(i))
			if err := os.Mkdir(layers.Lower[i], 0o700); err != nil {
				return err
			}
			if err := mapping.Bind(layer, layers.Lower[i]); err != nil {
				return err
			}
		}
	}
	return overlay.Mount(c.Rootfs(), layers)
}

// startContainer records a created container's process, and lets it become its program.
func (p *process) startContainer(ctx context.Context, spec localSpec, r *runc.Runc, id string, c *child) error {
	p.sup.cfg.Step(stepNote)
	err := p.commit(runtime.Starting, "", func(rec *record) {
		rec.PID, rec.Start, rec.StartedAt = c.PID, c.Start, time.Now().UTC()
	})
	if err == nil {
		err = takeBack(spec)
	}
	if err == nil {
		err = confine.Limit(spec.Isolation)
	}
	if err == nil {
		err = isolate.Remove(spec.creation())
	}
	if err != nil {
		return err
	}
	c.before = isolate.MemoryOf(c.Cgroup)
	p.sup.cfg.Step(stepStart)
	// The program begins before runc start ends. A stop that comes in between is to give it the stop signal.
	unhurried, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), createWait, runc.ErrTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(startWait, cancel) })()
	if err := p.sup.call(func() error { return r.Start(unhurried, id) }); err != nil {
		return err
	}
	p.sup.cfg.Step(stepStarted)
	return nil
}

// takeBack makes root the owner of the log again. runc gives the files of a process to its user. The group of the
// container may still write, so that an image's link to /dev/stdout works.
func takeBack(spec localSpec) error {
	log, err := os.OpenFile(spec.LogPath, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }()
	if err := log.Chown(os.Geteuid(), -1); err != nil {
		return fmt.Errorf("keep the log: %w", err)
	}
	return nil
}

// writtenName is the directory of what a container writes. Other users cannot enter it, because there may be programs
// with setuid bits in it.
const writtenName = "written"

// makeBundle makes the directory of a container anew.
func makeBundle(ctx context.Context, spec localSpec) error {
	c := spec.Container
	if err := wipe(ctx, c.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.Dir), 0o711); err != nil {
		return err
	}
	if err := canPass(filepath.Dir(c.Dir)); err != nil {
		return err
	}
	var config specs.Spec
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return err
	}
	_, group, err := confine.SplitCgroup(spec.cgroup())
	if err != nil {
		return err
	}
	if config.Linux == nil {
		config.Linux = &specs.Linux{}
	}
	config.Linux.CgroupsPath = group
	if err := runc.WriteBundle(c.Dir, &config); err != nil {
		return err
	}
	root := 0
	if c.IDs != nil {
		root = int(c.IDs.First)
	}
	type directory struct {
		name     string
		mode     os.FileMode
		uid, gid int
	}
	dirs := []directory{
		{"rootfs", 0o755, 0, 0},
		{writtenName, 0o700, 0, 0},
		{writtenName + "/upper", 0o755, root, root}, // the container sees this mode and owner at /
		{writtenName + "/work", 0o700, 0, 0},
		{"scratch", 0o710, 0, root}, // runc passes it as the container's root; other users of the node cannot
	}
	for i := range c.Scratch {
		dirs = append(dirs, directory{"scratch/" + strconv.Itoa(i), 0o755, c.UID, c.GID})
	}
	for _, d := range dirs {
		path := filepath.Join(c.Dir, d.name)
		if err := os.Mkdir(path, d.mode); err != nil {
			return err
		}
		if err := errors.Join(os.Chmod(path, d.mode), os.Chown(path, d.uid, d.gid)); err != nil {
			return err
		}
	}
	return errors.Join(copyFile("/etc/hosts", filepath.Join(c.Dir, "hosts")),
		copyFile("/etc/resolv.conf", filepath.Join(c.Dir, "resolv.conf")))
}

// canPass checks that other users can pass a directory and all above it, because runc does that as the container's
// root.
func canPass(dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&1 == 0 {
			return fmt.Errorf("directory %s: mode %o is not valid; allowed: one with which other users can pass it, "+
				"such as 711", dir, info.Mode().Perm())
		}
		if dir == "/" {
			return nil
		}
	}
}

// maxCopied bounds a file of the node that a container gets a copy of.
const maxCopied = 1 << 20

// copyFile makes a copy that all users can read. A missing file becomes an empty one.
func copyFile(from, to string) error {
	var data []byte
	f, err := os.Open(from)
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(f, maxCopied))
		_ = f.Close()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(to, data, 0o644); err != nil {
		return err
	}
	return os.Chmod(to, 0o644) // independent of the umask
}

// quell ends what exists of a container, even if it is half made. It returns false if ctx ends first. The creation
// ends first, because only it adds processes to the container.
func (p *process) quell(ctx context.Context) bool {
	rec := p.current()
	if rec.Container == "" || rec.Spec.Container == nil {
		return true
	}
	for _, dir := range []string{rec.Spec.creation(), rec.Spec.cgroup()} {
		for look := firstLook; ; look = min(2*look, lastLook) {
			inside, err := isolate.Members(dir)
			if err == nil && len(inside) == 0 {
				break
			}
			if err := errors.Join(err, isolate.Kill(dir)); err != nil {
				p.log("container not killed", map[string]any{"error": err})
			}
			if wait.Pause(ctx, look) != nil {
				return false
			}
		}
	}
	if rec.PID == 0 {
		return true
	}
	if err := p.amend(func(r *record) { r.PID, r.Start = 0, 0 }); err != nil {
		p.log("state not written", map[string]any{"error": err})
	}
	return true
}

// tidy is sweep, which does not fail. The next start or removal of the process tries again.
func (p *process) tidy(ctx context.Context, id string) {
	if err := p.sweep(ctx, id); err != nil && ctx.Err() == nil {
		p.log("container not removed", map[string]any{"container": id, "error": err})
	}
}

// sweep removes an ended container: runc's state, cgroups and files. If the process has another container by now, sweep
// does nothing.
func (p *process) sweep(ctx context.Context, id string) error {
	p.sweeping.Lock()
	defer p.sweeping.Unlock()
	rec := p.current()
	if id == "" || rec.Container != id || rec.Spec.Container == nil {
		return nil
	}
	p.sup.cfg.Step(stepDelete)
	if err := p.sup.remains(ctx, rec.Spec, id); err != nil {
		return err
	}
	p.sup.cfg.Step(stepForget)
	return p.amend(func(r *record) { r.Container = "" })
}

// remains removes what is left of an ended container.
func (s *supervisor) remains(ctx context.Context, spec localSpec, id string) error {
	_, group, err := confine.SplitCgroup(spec.cgroup())
	if err != nil {
		return err
	}
	r, err := s.runc()
	if err == nil {
		err = r.Delete(ctx, id, group)
	}
	return errors.Join(err, isolate.Remove(spec.creation()), wipe(ctx, spec.Container.Dir))
}

// abandon removes a stopped container before its process is forgotten. Without runc, it removes runc's state itself:
// no process of the container is left.
func (p *process) abandon(ctx context.Context) {
	id := p.current().Container
	if id == "" {
		return
	}
	err := p.sweep(ctx, id)
	if err == nil || ctx.Err() != nil {
		return
	}
	p.log("container not removed", map[string]any{"container": id, "error": err})
	p.sweeping.Lock()
	defer p.sweeping.Unlock()
	spec := p.current().Spec
	_, group, err := confine.SplitCgroup(spec.cgroup())
	if err == nil {
		err = runc.ClearCgroups(ctx, group, runc.DefaultTimeout)
	}
	if err := errors.Join(err, os.RemoveAll(filepath.Join(p.sup.cfg.RuncState, id))); err != nil {
		p.log("container not removed without runc", map[string]any{"container": id, "error": err})
	}
	p.mu.Lock()
	p.rec.Container = ""
	p.mu.Unlock()
}
