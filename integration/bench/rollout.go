package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const (
	overheadSeconds = 0.5 // of a stage, beyond the time that its pods take to start and to stop
	manyOverOne     = 2   // times the duration
)

// podTime is short, so that farms cause most of the measured time.
const podTime = 20 * time.Millisecond

func rolloutBench(ctx context.Context, b *bench) error {
	if b.wants("large") {
		if err := b.largeRollout(ctx); err != nil {
			return fmt.Errorf("large: %w", err)
		}
	}
	if b.wants("many") {
		if err := b.manyRollouts(ctx); err != nil {
			return fmt.Errorf("many: %w", err)
		}
	}
	return nil
}

func (b *bench) largeRollout(ctx context.Context) error {
	var sc scope
	defer sc.close()
	w, who, err := b.rolloutWorld(ctx, &sc)
	if err != nil {
		return err
	}
	if err := w.serve(ctx, "web", 1, b.rolloutPods); err != nil {
		return err
	}
	var took time.Duration
	var stages int
	err = b.metered(ctx, "rollout/large", who, func() (n int, err error) {
		took, stages, err = w.roll(ctx, "web", 2, b.rolloutPods)
		return stages, err
	})
	if err != nil {
		return err
	}
	stage := took / time.Duration(stages)
	b.report.add("rollout/large/stages", float64(stages), "stages", goal{})
	b.report.add("rollout/large/stage", stage.Seconds(), "s", goal{})
	b.report.add("rollout/large/overhead-per-stage", (stage - 2*podTime).Seconds(), "s", atMost(overheadSeconds))
	return nil
}

func (b *bench) manyRollouts(ctx context.Context) error {
	var sc scope
	defer sc.close()
	w, who, err := b.rolloutWorld(ctx, &sc)
	if err != nil {
		return err
	}
	const replicas = 20
	names := make([]string, b.rollouts)
	for i := range names {
		names[i] = fmt.Sprintf("web-%02d", i)
	}
	each := func(do func(ctx context.Context, name string) error) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, name := range names {
			group.Go(func() error { return do(ctx, name) })
		}
		return group.Wait()
	}
	if err := each(func(ctx context.Context, name string) error {
		return w.serve(ctx, name, 1, replicas)
	}); err != nil {
		return err
	}
	one, _, err := w.roll(ctx, names[0], 2, replicas)
	if err != nil {
		return err
	}
	var all time.Duration
	err = b.metered(ctx, "rollout/many", who, func() (stages int, err error) {
		all, stages, err = w.rollAll(ctx, names, 3, replicas)
		return stages, err
	})
	if err != nil {
		return err
	}
	b.report.add("rollout/many/one", one.Seconds(), "s", goal{})
	b.report.add("rollout/many/all", all.Seconds(), "s", goal{})
	b.report.add("rollout/many/all-times-one", all.Seconds()/one.Seconds(), "ratio", atMost(manyOverOne))
	return nil
}

func (b *bench) rolloutWorld(ctx context.Context, sc *scope) (*world, spenders, error) {
	dev, w, err := b.startWorld(ctx, sc, manyClients,
		simnode.Fleet{Name: "n", Size: b.nodes / 2, Groups: changeGroups, StartTime: podTime})
	if err != nil {
		return nil, spenders{}, err
	}
	farm, err := b.startFarm(ctx, sc, w, "farm", "", dev.addr)
	if err != nil {
		return nil, spenders{}, err
	}
	return w, spenders{dev, farm}, farm.events.seen(ctx, syncedLine)
}

func revision(unit, service string, rev int64, replicas int) (rc.RC, []byte, error) {
	return controller(fmt.Sprintf("%s-r%d", service, rev), replicas, 0, func(r *rc.RC) {
		r.ID = rc.RevisionID(unit, rev)
		r.Labels = map[string]string{"service": service}
		r.Service = &rc.Service{Name: service, Revision: rev}
	})
}

// serve makes the first revision of a service as after its rollout, and returns when all pods are available.
func (w *world) serve(ctx context.Context, service string, rev int64, replicas int) error {
	r, canonical, err := revision(store.NewID(), service, rev, replicas)
	if err != nil {
		return err
	}
	ops, err := w.creation(r, canonical)
	if err != nil {
		return err
	}
	if _, err := w.client.Commit(ctx, ops); err != nil {
		return err
	}
	return sparingly(ctx, time.Now(), func() error {
		st, err := w.store.Statuses.Get(ctx, store.Default, r.ID)
		if err == nil && st.Value.Available < replicas {
			err = fmt.Errorf("%d of %d pods of %s are available", st.Value.Available, replicas, r.Name)
		}
		return err
	})
}

// roll begins a rollout of a service to another revision, and returns how long it took, and its number of stages.
func (w *world) roll(ctx context.Context, service string, rev int64,
	replicas int,
) (took time.Duration, stages int, err error) {
	d, err := w.deployment(ctx, service, rev, replicas)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := w.store.Deployments.Deploy(ctx, d); err != nil {
		return 0, 0, err
	}
	stages = 1
	err = sparingly(ctx, began, func() error {
		rec, err := w.store.Rollouts.Get(ctx, store.Consistent, d.Rollout.Value.Unit())
		switch {
		case errors.Is(err, store.ErrNotFound):
			took = time.Since(began)
			return nil
		case err != nil:
			return err
		}
		stages = max(stages, rec.Value.Stage)
		if rec.Value.State != rollout.Progressing {
			return fmt.Errorf("the rollout of %s is %s: %s", service, rec.Value.State, rec.Value.Reason)
		}
		return fmt.Errorf("the rollout of %s is in stage %d of %d, phase %s", service,
			rec.Value.Stage, rec.Value.Stages, rec.Value.Phase)
	})
	if err != nil {
		return 0, 0, err
	}
	return took, stages, w.rolled(ctx, &d, replicas)
}

func (w *world) rolled(ctx context.Context, d *store.Deploy, replicas int) error {
	next, err := w.store.RCs.Get(ctx, store.Consistent, d.RCs[len(d.RCs)-1].Value.ID)
	if err == nil && next.Value.Desired() != replicas {
		err = fmt.Errorf("after its rollout %s asks for %d replicas", next.Value.Name, next.Value.Desired())
	}
	return err
}

// rollAll is roll for many services. One poll reads all rollouts, because fifty polls would take as much processor time
// as the farm.
func (w *world) rollAll(ctx context.Context, services []string, rev int64,
	replicas int,
) (took time.Duration, stages int, err error) {
	begins, units := make([]store.Deploy, len(services)), make([]string, len(services))
	for i, service := range services {
		if begins[i], err = w.deployment(ctx, service, rev, replicas); err != nil {
			return 0, 0, err
		}
		stages += begins[i].Rollout.Value.Stages
		units[i] = begins[i].Rollout.Value.Unit()
	}
	began := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range begins {
		group.Go(func() error { return w.store.Deployments.Deploy(groupCtx, begins[i]) })
	}
	if err := group.Wait(); err != nil {
		return 0, 0, err
	}
	err = sparingly(ctx, began, func() error {
		keys, err := w.client.Keys(ctx, w.keys.Rollouts.Key())
		if err != nil {
			return err
		}
		if left := len(slices.DeleteFunc(keys,
			func(key string) bool { return !slices.Contains(units, path.Base(key)) })); left > 0 {
			return fmt.Errorf("%d of %d rollouts are under way", left, len(services))
		}
		took = time.Since(began)
		return nil
	})
	if err != nil {
		return 0, 0, errors.Join(err, w.underWay(context.WithoutCancel(ctx), units))
	}
	for i := range begins {
		if err := w.rolled(ctx, &begins[i], replicas); err != nil {
			return 0, 0, err
		}
	}
	return took, stages, nil
}

func (w *world) underWay(ctx context.Context, units []string) error {
	var all []error
	for _, unit := range units {
		if rec, err := w.store.Rollouts.Get(ctx, store.Consistent, unit); err == nil {
			r := &rec.Value
			all = append(all, fmt.Errorf("the rollout of %s is %s in stage %d of %d, phase %s: %s", r.Service, r.State,
				r.Stage, r.Stages, r.Phase, r.Reason))
		}
	}
	return errors.Join(all...)
}

// deployment returns the transaction that begins a rollout to one more revision, a tenth of the pods at a time.
func (w *world) deployment(ctx context.Context, service string, rev int64, replicas int) (store.Deploy, error) {
	schema, err := w.store.Schema.Get(ctx, store.Default)
	if err != nil {
		return store.Deploy{}, err
	}
	start := rollout.Start{
		ID: store.NewID(), Service: service, By: "bench",
		Now: time.Now().UTC(), Epoch: schema.Value.Epoch,
	}
	unit, indices := "", map[string]uint64{}
	recs, _, err := w.store.RCs.List(ctx, store.Default)
	if err != nil {
		return store.Deploy{}, err
	}
	for i := range recs {
		if r := &recs[i].Value; r.Service != nil && r.Service.Name == service && r.DeletedAt == nil {
			start.Old = append(start.Old, rollout.Seen{RC: *r})
			unit, indices[r.ID] = rc.UnitOf(r.ID), recs[i].Index
		}
	}
	next, canonical, err := revision(unit, service, rev, replicas)
	if err != nil {
		return store.Deploy{}, err
	}
	start.New = next
	started, err := rollout.Begin(start)
	if err != nil {
		return store.Deploy{}, err
	}
	d := store.Deploy{
		Rollout: store.Rec[rollout.Record]{Value: started.Record}, SchemaIndex: schema.Index,
		Manifests: []store.DeployManifest{{Digest: next.ManifestDigest, Canonical: canonical}},
		Audit:     store.NewAudit("bench", "deploy", next.ID, started.Audit),
	}
	for _, r := range started.RCs {
		d.RCs = append(d.RCs, store.Rec[rc.RC]{Value: r, Index: indices[r.ID]})
	}
	return d, nil
}
