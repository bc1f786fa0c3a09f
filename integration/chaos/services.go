package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// One more operator deploys services with rcctl.

const (
	serviceCount = 4
	leastPods    = 6  // of a service
	mostPods     = 20 // most pods that a service asks for
	servicePause = 600 * time.Millisecond
	// stageLimit is short: most faults delay a revision for longer.
	stageLimit = 8 * time.Second
)

var strategies = []string{
	rollout.AvailabilityStrategy, rollout.ResourceUtilStrategy, rollout.CanaryStrategy,
	rollout.BlueGreenStrategy, rollout.InPlaceStrategy,
}

type deployer struct {
	c    *chaos
	w    *workload // the other operators, who may undrain the nodes that this operator drains
	rng  *rand.Rand
	turn int // counts deployments; selects the strategy
	size [serviceCount]int
	// again is when each service was deployed again at the end of the run.
	again [serviceCount]time.Time
}

func newDeployer(c *chaos, w *workload) *deployer {
	return &deployer{c: c, w: w, rng: newRand(c.cfg.seed, 9)}
}

func serviceName(i int) string { return fmt.Sprintf("svc-%d", i+1) }

func (d *deployer) initial(ctx context.Context) error {
	for i := range serviceCount {
		d.size[i] = leastPods + d.rng.IntN(mostPods-leastPods+1)
		if err := d.deploy(ctx, i, rollout.AvailabilityStrategy, false); err != nil {
			return fmt.Errorf("deploy the services: %w", err)
		}
	}
	return nil
}

func (d *deployer) start(ctx context.Context, group *errgroup.Group) {
	group.Go(func() error {
		for wait(ctx, servicePause/10+upTo(d.rng, servicePause)) {
			d.c.acting.RLock()
			call, cancel := context.WithTimeout(ctx, callLimit)
			what, err := d.act(call)
			cancel()
			d.c.acting.RUnlock()
			if ctx.Err() == nil && what != "" {
				d.c.report.operation(what, err)
			}
		}
		return nil
	})
}

// act does one thing to one service that its rollout allows now.
func (d *deployer) act(ctx context.Context) (what string, err error) {
	i, dice := d.rng.IntN(serviceCount), d.rng.IntN(100)
	n := leastPods + d.rng.IntN(mostPods-leastPods+1)
	bad := d.rng.IntN(5) == 0
	name := serviceName(i)
	rec, err := d.c.stores[d.rng.IntN(servers)].Deployments.RolloutOf(ctx, name)
	none := errors.Is(err, store.ErrNotFound)
	if err != nil && !none {
		return "read a rollout", err
	}
	ask := func(verb string) (string, error) { return "rollout " + verb, d.c.rcctl(ctx, "rollout", verb, name) }
	state := rec.Value.State
	switch {
	case none && dice < 72:
		return d.next(ctx, i, bad)
	case none && dice < 75:
		return "delete a service", d.c.rcctl(ctx, "service", "delete", name, "--force", "--allow-mass-stop")
	case none && dice < 85:
		return "roll a service back", d.c.rcctl(ctx, "rollback", name, "--yes", "--detach")
	case dice >= 92:
		d.size[i] = n
		return "scale a service", d.c.rcctl(ctx, "scale", name, fmt.Sprint(n), "--yes", "--detach")
	case none:
		return "", nil
	case dice >= 88:
		return d.next(ctx, i, bad) // while a rollout is under way
	case state == rollout.Paused && dice < 60:
		return ask("resume")
	case state == rollout.WaitingForPromote && dice < 40:
		return ask("promote")
	case dice < 8:
		return ask("pause")
	case dice < 12:
		return ask("abort")
	case dice < 18:
		return ask("rollback")
	case dice < 50:
		return d.drain(ctx, &rec.Value)
	}
	return "", nil // the rollout continues
}

// drain drains a node on which a rollout has pods, so that pods move while counts change, or ends a drain.
func (d *deployer) drain(ctx context.Context, r *rollout.Record) (what string, err error) {
	of := r.Revisions[d.rng.IntN(len(r.Revisions))].RC
	placed, _, err := d.c.stores[d.rng.IntN(servers)].Pods.List(ctx, store.Default, of)
	if err != nil || len(placed) == 0 {
		return "", err
	}
	what, err = d.w.drainNode(ctx, placed[d.rng.IntN(len(placed))].Value.Node, false)
	return what + " in a rollout", err
}

func (d *deployer) next(ctx context.Context, i int, bad bool) (what string, err error) {
	d.turn++
	strategy := strategies[d.turn%len(strategies)]
	what = "deploy " + strategy
	if bad {
		what = "deploy what cannot run"
	}
	return what, d.deploy(ctx, i, strategy, bad)
}

func (d *deployer) deploy(ctx context.Context, i int, strategy string, bad bool) error {
	return d.write(ctx, d.document(i, strategy), bad)
}

func (d *deployer) write(ctx context.Context, spec *record.ServiceSpec, bad bool) error {
	canonical, err := spec.Pod.Canonical()
	if err != nil {
		return err
	}
	if bad {
		d.c.broken.Store(manifest.Digest(canonical), true)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	path := filepath.Join(d.c.cfg.dir, spec.Name+".json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	return d.c.rcctl(ctx, "deploy", "--file", path, "--yes", "--detach")
}

// document differs from earlier ones, perhaps also in the team, and so in the farms that may own the revision. Every
// second service has a dynamic port.
func (d *deployer) document(i int, strategy string) *record.ServiceSpec {
	total, timeout := d.size[i], field.Duration(stageLimit)
	knobs := rollout.Knobs{
		Strategy: strategy, Step: &rollout.Amount{N: 1 + d.rng.IntN(total/2)}, StageTimeout: &timeout,
		OnTimeout: []string{
			rollout.OnTimeoutRollback, rollout.OnTimeoutPause,
			rollout.OnTimeoutContinue,
		}[d.rng.IntN(3)],
	}
	short := field.Duration(upTo(d.rng, 3*time.Second).Truncate(time.Millisecond))
	switch strategy {
	case rollout.CanaryStrategy:
		knobs.Canary = &rollout.Canary{Pods: 1 + d.rng.IntN(3)}
	case rollout.BlueGreenStrategy:
		knobs.KeepOld = &short
	}
	if promotes := d.rng.IntN(3) > 0; promotes &&
		(strategy == rollout.CanaryStrategy || strategy == rollout.BlueGreenStrategy) {
		knobs.AutoPromote = &short
	}
	if d.rng.IntN(4) == 0 {
		knobs.Gates = d.c.gates()
	}
	pod := &manifest.Manifest{
		Version: manifest.Version, ID: serviceName(i), MinReady: new(field.Duration),
		Launchables: []manifest.Launchable{{
			Name: "main",
			Artifact: manifest.Artifact{
				Kind: manifest.ArtifactTar, URL: "file:///nowhere.tar.gz",
				SHA256: fmt.Sprintf("%064x", d.rng.Uint64()),
			},
		}},
	}
	if i%2 == 1 {
		pod.Ports = []manifest.Port{{Name: "http", Dynamic: true}}
	}
	spec := &record.ServiceSpec{
		Name: serviceName(i), Labels: map[string]string{teamLabel: []string{"a", "b"}[d.rng.IntN(2)]}, Replicas: &total,
		Update: knobs, Pod: pod, NodeLoss: rc.NodeLoss{After: new(lostAfter), UnmanagedAfter: new(unmanagedAfter)},
	}
	if d.rng.IntN(4) == 0 {
		spec.PreDeploy = &record.PreDeploy{}
	}
	return spec
}

// After everything is healed, each service is brought to one revision.
const (
	finishPatience   = 8 * time.Second  // how long rollouts may continue
	convergePatience = 2 * time.Second  // how long controllers without a rollout may take
	finishAgain      = 10 * time.Second // between two deployments of one service
)

// finish resumes paused rollouts and promotes waiting ones. After some time it deploys a service again, for example
// because a wipe deleted its rollout.
func (d *deployer) finish(ctx context.Context, healed time.Time) error {
	var errs []error
	for i := range serviceCount {
		name := serviceName(i)
		rec, err := d.c.stores[rand.IntN(servers)].Deployments.RolloutOf(ctx, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			errs = append(errs, err)
			continue
		}
		patience := finishPatience
		if err == nil {
			err = d.carryOn(ctx, &rec.Value)
		} else {
			err, patience = d.converged(ctx, name), convergePatience
		}
		errs = append(errs, err)
		if err != nil && time.Since(healed) > patience && time.Since(d.again[i]) > finishAgain {
			d.again[i] = time.Now()
			spec := d.document(i, rollout.AvailabilityStrategy)
			spec.Update.Step = &rollout.Amount{N: d.size[i]} // all pods at once
			spec.Update.Gates, spec.PreDeploy = rollout.Gates{}, nil
			errs = append(errs, d.write(ctx, spec, false))
		}
	}
	return errors.Join(append(errs, d.deleteLeftPreDeploys(ctx))...)
}

// If a wipe or a restore deleted a rollout, no other component deletes its controller of a pre_deploy.
func (d *deployer) deleteLeftPreDeploys(ctx context.Context) error {
	st := d.c.stores[rand.IntN(servers)]
	recs, corrupt, err := st.RCs.List(ctx, store.Default)
	errs := append(corrupt, err)
	for i := range recs {
		r := &recs[i].Value
		service, _, found := strings.Cut(strings.TrimSuffix(r.Name, "-pre-deploy"), "-r")
		if !strings.HasSuffix(r.Name, "-pre-deploy") || !found || r.DeletedAt != nil {
			continue
		}
		switch _, err := st.Deployments.RolloutOf(ctx, service); {
		case errors.Is(err, store.ErrNotFound):
			errs = append(errs, fmt.Errorf("%s is left without its rollout", r.Name),
				d.c.rcctl(ctx, "rc", "delete", r.Name, "--force", "--allow-mass-stop"))
		case err != nil:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// carryOn makes the request that a rollout waits for. It returns an error while the rollout is under way.
func (d *deployer) carryOn(ctx context.Context, r *rollout.Record) (err error) {
	switch {
	case r.Request != nil: // the owner answers it soon
	case r.State == rollout.Paused:
		err = d.c.rcctl(ctx, "rollout", "resume", r.Service)
	case r.State == rollout.WaitingForPromote:
		err = d.c.rcctl(ctx, "rollout", "promote", r.Service)
	}
	return errors.Join(fmt.Errorf("the rollout of %s is %s in stage %d, %s: %s %s", r.Service, r.State, r.Stage,
		r.Phase, r.Reason, r.BlockedReason), err)
}

func (d *deployer) converged(ctx context.Context, name string) error {
	st := d.c.stores[rand.IntN(servers)]
	recs, corrupt, err := st.RCs.List(ctx, store.Default)
	if err := errors.Join(append(corrupt, err)...); err != nil {
		return err
	}
	statuses, _, err := st.Statuses.List(ctx, store.Default)
	if err != nil {
		return err
	}
	converged := map[string]bool{}
	for _, s := range statuses {
		converged[s.Value.RCID] = s.Value.Is(rc.Converged)
	}
	living := 0
	for i := range recs {
		r := &recs[i].Value
		if r.Service == nil || r.Service.Name != name {
			continue
		}
		if r.DeletedAt == nil && r.Desired() > 0 {
			living++
		}
		if !converged[r.ID] {
			return fmt.Errorf("%s has not converged", r.Name)
		}
	}
	if living > 1 {
		return fmt.Errorf("%s has %d revisions with pods and no rollout", name, living)
	}
	return nil
}
