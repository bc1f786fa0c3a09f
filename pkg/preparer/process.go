package preparer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// The environment of a pod's processes, besides what its manifest says.
const (
	envNode       = "NODE_NAME"
	envAddress    = "NODE_ADDRESS"
	envPodID      = "POD_ID"
	envHome       = "POD_HOME"
	envDigest     = "POD_DIGEST"
	envRC         = "RC_ID"
	envRole       = "POD_ROLE"
	envIndex      = "POD_INDEX"
	portEnvPrefix = "PORT_"
	envPath       = "PATH"
	// defaultPath is there because next to no program starts without a PATH, and nothing is inherited.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// maxSpecID keeps a process id usable as a file name with a suffix.
const maxSpecID = 190

// specID names one process of one version of a pod. The revision makes it new for each installation: going back to an
// earlier digest must not meet that version's stopped processes.
func specID(id pod.Identity, revision int64, digest, launchable string) string {
	full := fmt.Sprintf("%s.%s.%s.%d", fileName(id), launchable, short(digest), revision)
	if len(full) <= maxSpecID {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	return full[:maxSpecID-17] + "." + hex.EncodeToString(sum[:8])
}

func specIDs(id pod.Identity, revision int64, digest string, m *manifest.Manifest) []string {
	ids := make([]string, len(m.Launchables))
	for i := range m.Launchables {
		ids[i] = specID(id, revision, digest, m.Launchables[i].Name)
	}
	return ids
}

// procPlan is what must be done so that exactly the wanted processes run.
type procPlan struct {
	stop   []string // still running, or on their way down
	remove []string // to be forgotten, after stop
	start  []string // after remove
	others bool     // wanted ones that need nothing are there
}

func (pl *procPlan) empty() bool { return len(pl.stop)+len(pl.remove)+len(pl.start) == 0 }

// planProcs compares the wanted ids with what the runtime has of the pod.
func planProcs(wanted []string, procs []runtime.Status) procPlan {
	var plan procPlan
	have := map[string]bool{}
	for _, status := range procs {
		id := status.Spec.ID
		ending := status.Phase == runtime.Stopped || status.Phase == runtime.Stopping
		if slices.Contains(wanted, id) && !ending {
			have[id], plan.others = true, true
			continue
		}
		if status.Phase != runtime.Stopped {
			plan.stop = append(plan.stop, id)
		}
		plan.remove = append(plan.remove, id)
	}
	for _, id := range wanted {
		if !have[id] {
			plan.start = append(plan.start, id)
		}
	}
	return plan
}

// keep makes exactly the installed processes run. Processes that run already are left alone, whatever their
// specification says: a new version of the preparer must not restart pods.
func (p *Preparer) keep(ctx context.Context, e *entry, rec Record) (Record, error) {
	m := rec.Installed.manifest()
	if m == nil {
		var err error
		if rec, m, err = p.identify(ctx, e, rec); err != nil {
			return rec, err
		}
	}
	if held, err := p.heldBack(e, m); held || err != nil {
		if err == nil {
			err = p.holdBack(ctx, e, m)
		}
		return rec, err
	}
	wanted := specIDs(e.id, rec.Installed.Revision, rec.Installed.Digest, m)
	plan := planProcs(wanted, p.procsOf(e))
	if !plan.empty() {
		procs, err := p.refresh(ctx, e) // the runtime's last report may be older than our last act
		if err != nil {
			p.keepFailed(e, &rec, fmt.Errorf("the runtime does not answer: %w", err))
			return rec, err
		}
		plan = planProcs(wanted, procs)
	}
	if !plan.empty() {
		if err := p.carryOut(ctx, e, rec, m, plan); err != nil {
			p.keepFailed(e, &rec, err)
			return rec, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !e.up {
		e.up = true
		p.service.raise()
		p.seen.raise()
	}
	return rec, nil
}

// keepFailed reports what keeps the installed version from running, unless it is on its way out: what is reported under
// the accepted revision must be about the version that it asked for.
func (p *Preparer) keepFailed(e *entry, rec *Record, err error) {
	if rec.upToDate() && !errors.Is(err, context.Canceled) {
		p.setActivity(e, pod.StateFailed, err.Error())
	}
}

func (p *Preparer) carryOut(ctx context.Context, e *entry, rec Record, m *manifest.Manifest, plan procPlan) error {
	var dirs map[string]string
	if len(plan.start) > 0 {
		var err error
		fetching, done := p.interruptible(ctx, e, rec.Intent.Revision)
		dirs, err = p.fetch(fetching, m) // before anything is stopped
		done()
		if err != nil {
			return err
		}
	}
	if len(plan.stop) > 0 {
		p.withdraw(ctx, e)
		p.logChange(e, "stop old version", obs.Fields{obs.Process: strings.Join(plan.stop, " ")})
		if err := p.stopProcs(ctx, plan.stop); err != nil {
			return err
		}
	}
	for _, id := range plan.remove {
		if err := p.cfg.Runtime.Remove(ctx, id); err != nil {
			return fmt.Errorf("remove stopped process %s: %w", id, err)
		}
	}
	if len(plan.start) == 0 {
		return nil
	}
	if !plan.others {
		if err := p.checkPorts(ctx, rec.Installed.Ports); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(p.home(e.id), 0o750); err != nil {
		return fmt.Errorf("make home of pod: %w", err)
	}
	for i := range m.Launchables {
		spec := p.spec(e.id, rec, &m.Launchables[i], dirs)
		if !slices.Contains(plan.start, spec.ID) {
			continue
		}
		if err := p.start(ctx, e, spec); err != nil {
			return err
		}
	}
	return nil
}

func (p *Preparer) start(ctx context.Context, e *entry, spec runtime.Spec) error {
	if err := os.MkdirAll(filepath.Dir(spec.LogPath), 0o750); err != nil {
		return fmt.Errorf("make log directory: %w", err)
	}
	err := p.cfg.Runtime.Start(ctx, spec)
	if err != nil && !errors.Is(err, runtime.ErrExists) {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p.logChange(e, "start", obs.Fields{obs.Process: spec.ID, fieldDigest: short(e.rec.Installed.Digest)})
	return nil
}

// spec describes one process. The manifest's environment cannot replace what the node says.
func (p *Preparer) spec(id pod.Identity, rec Record, l *manifest.Launchable, dirs map[string]string) runtime.Spec {
	env := map[string]string{envPath: defaultPath}
	maps.Copy(env, l.Env)
	maps.Copy(env, map[string]string{
		envNode: p.cfg.Node.Name, envAddress: p.cfg.Node.Address, envPodID: rec.Intent.PodID, envHome: p.home(id),
		envDigest: rec.Installed.Digest, envRC: id.RCID, envRole: id.Role, envIndex: strconv.Itoa(id.Index),
	})
	for name, port := range rec.Installed.Ports {
		env[portEnvPrefix+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))] = strconv.Itoa(port)
	}
	return runtime.Spec{
		ID:  specID(id, rec.Installed.Revision, rec.Installed.Digest, l.Name),
		Pod: id, Revision: rec.Installed.Revision, Name: l.Name,
		Command: append([]string{filepath.Join(dirs[l.Name], "bin", "launch")}, l.Args...),
		Env:     joinEnv(env), Dir: p.home(id),
		LogPath:       filepath.Join(p.cfg.Dir, "logs", fileName(id), l.Name+".log"),
		HoldAfterBoot: stopAfter(rec.Installed.manifest()) != never,
		LogBytes:      p.cfg.LogBytes, LogKeep: p.cfg.LogKeep,
		StopGrace: l.StopGrace.Or(manifest.DefaultStopGrace),
	}
}

// home is the pod's own directory. It stays when the pod is upgraded, and when it is stopped.
func (p *Preparer) home(id pod.Identity) string {
	return filepath.Join(p.cfg.Dir, "homes", fileName(id))
}

func joinEnv(env map[string]string) []string {
	lines := make([]string, 0, len(env))
	for _, key := range slices.Sorted(maps.Keys(env)) {
		lines = append(lines, key+"="+env[key])
	}
	return lines
}

func parseEnv(lines []string) map[string]string {
	env := make(map[string]string, len(lines))
	for _, line := range lines {
		key, value, _ := strings.Cut(line, "=")
		env[key] = value
	}
	return env
}

// stopProcs stops processes side by side, so that their graces do not add up.
func (p *Preparer) stopProcs(ctx context.Context, ids []string) error {
	var all errgroup.Group
	for _, id := range ids {
		all.Go(func() error {
			if err := p.cfg.Runtime.Stop(ctx, id); err != nil {
				return fmt.Errorf("stop %s: %w", id, err)
			}
			return nil
		})
	}
	return all.Wait()
}

// removeProcs makes the runtime forget what is stopped.
func (p *Preparer) removeProcs(ctx context.Context, procs []runtime.Status) error {
	for _, status := range procs {
		if err := p.cfg.Runtime.Remove(ctx, status.Spec.ID); err != nil {
			return fmt.Errorf("remove stopped process %s: %w", status.Spec.ID, err)
		}
	}
	return nil
}

func unique(ids []string) []string {
	slices.Sort(ids)
	return slices.Compact(ids)
}
