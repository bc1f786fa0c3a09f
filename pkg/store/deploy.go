package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Deployments has the deployed services and their rollouts.
type Deployments struct{ *db }

// Service reads all that a plan for a service needs, or returns ErrNotFound or a *CorruptError. It reads the rollout
// first, because the end of a rollout changes history and controllers.
func (s *Deployments) Service(ctx context.Context, name string) (*record.Service, error) {
	deployed, err := s.Deployed.Get(ctx, Consistent, name)
	if err != nil {
		return nil, err
	}
	svc := &record.Service{Deployed: deployed.Value, Index: deployed.Index}
	if err := s.readRollout(ctx, svc); err != nil {
		return nil, err
	}
	entries, corrupt, err := s.History(ctx, name)
	if err = errors.Join(append(corrupt, err)...); err != nil {
		return nil, err
	}
	for _, e := range entries {
		svc.History = append(svc.History, e.Value)
	}
	svc.Controllers, err = s.revisions(ctx, name)
	return svc, err
}

func (s *Deployments) readRollout(ctx context.Context, svc *record.Service) error {
	rec, err := s.Rollouts.Get(ctx, consul.Consistent, svc.Deployed.ID)
	switch {
	case err == nil:
		svc.Rollout, svc.RolloutAt = &rec.Value, rec.Index
	case errors.Is(err, ErrNotFound):
		return nil
	}
	return err
}

func (s *Deployments) revisions(ctx context.Context, name string) ([]record.Controller, error) {
	names, err := s.c.Keys(ctx, s.keys.Names.Key(name+"-r"))
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(key string) bool {
		of, _, is := rc.ParseRevisionName(s.keys.Names.first(key))
		return !is || of != name
	})
	ids, err := s.c.GetMany(ctx, names, consul.Consistent)
	if err != nil {
		return nil, err
	}
	keys := make([]string, 0, 2*len(ids))
	for _, id := range ids {
		keys = append(keys, s.keys.RCs.Key(string(id.Value)), s.keys.Statuses.Key(string(id.Value)))
	}
	found, err := s.c.GetMany(ctx, keys, consul.Consistent)
	if err != nil {
		return nil, err
	}
	var all []record.Controller
	for _, id := range ids {
		rec, err := s.RCs.decodeIn(found, s.keys.RCs.Key(string(id.Value)))
		if err != nil {
			return nil, err
		}
		if of := rec.Value.Service; of != nil && of.Name == name {
			all = append(all,
				record.Controller{RC: rec.Value, Index: rec.Index, Status: s.statusOf(found, rec.Value.ID)})
		}
	}
	slices.SortFunc(all, func(a, b record.Controller) int { return int(a.RC.Service.Revision - b.RC.Service.Revision) })
	return all, nil
}

// DeployDraft writes a plan's draft in one transaction. It returns the errors of Deploy, and ErrSettingsChanged.
func (s *Deployments) DeployDraft(ctx context.Context, d *record.Draft, audit Audit) error {
	err := s.writeDraft(ctx, d, audit)
	if consul.RefusedOn(err, s.keys.Settings.Key()) {
		return fmt.Errorf("%w: %w", ErrSettingsChanged, err)
	}
	return err
}

func (s *Deployments) writeDraft(ctx context.Context, d *record.Draft, audit Audit) error {
	seen := record.Service{}
	if d.Seen != nil {
		seen = *d.Seen
	}
	rcs, err := s.draftRCs(ctx, d, &seen, audit)
	if err != nil {
		return err
	}
	entry, err := s.entryOp(ctx, d)
	if err != nil {
		return err
	}
	ops := []consul.Op{cas(s.keys.Deployed.Key(d.Service), d.Deployed, seen.Index), entry}
	if d.Settings != nil {
		ops = append(ops, sameRecord(s.keys.Settings.Key(), *d.Settings))
	}
	for _, rev := range d.Forget {
		ops = append(ops, consul.Delete(s.keys.Entries.Key(d.Service, strconv.FormatInt(rev, 10))))
	}
	manifests := make([]DeployManifest, 0, len(d.Manifests))
	for digest, canonical := range d.Manifests {
		manifests = append(manifests,
			DeployManifest{Digest: digest, Canonical: canonical, Signature: d.Signatures[digest]})
	}
	if d.Rollout != nil {
		schema, err := s.Schema.Get(ctx, Default)
		if err != nil {
			return fmt.Errorf("read schema: %w", err)
		}
		if schema.Value.Epoch != d.Rollout.Epoch {
			return fmt.Errorf("service %s: the cluster has another epoch since the plan was made: %w",
				d.Service, ErrConflict)
		}
		others := map[string]uint64{}
		for _, c := range seen.Controllers {
			if !slices.ContainsFunc(rcs, func(r Rec[rc.RC]) bool { return r.Value.ID == c.RC.ID }) {
				others[c.RC.ID] = c.Index
			}
		}
		return s.Deploy(ctx, Deploy{
			Rollout: Rec[rollout.Record]{
				Value: *d.Rollout,
				Index: seen.RolloutAt,
			}, RCs: rcs, Unchanged: others, SchemaIndex: schema.Index,
			Manifests: manifests, Besides: ops, Audit: audit,
		})
	}
	if seen.Rollout == nil {
		ops = append(ops, consul.CheckMissing(s.keys.Rollouts.Key(d.Deployed.ID)))
	}
	return s.change(ctx, "service "+d.Service, ops, manifests, rcs, audit)
}

// entryOp writes the history of a draft. If the rollout that the plan saw has ended, the entry has its outcome. Then
// entryOp returns ErrConflict, because the write would overwrite the outcome.
func (s *Deployments) entryOp(ctx context.Context, d *record.Draft) (consul.Op, error) {
	revision := strconv.FormatInt(d.Deployed.Revision, 10)
	key := s.keys.Entries.Key(d.Service, revision)
	if d.Rollout != nil || d.Seen == nil || d.Seen.Rollout == nil {
		return set(key, d.Entry), nil
	}
	is, err := s.Entries.Get(ctx, Consistent, d.Service, revision)
	switch {
	case errors.Is(err, ErrNotFound): // is.Index is zero then
	case err != nil:
		return consul.Op{}, err
	case is.Value.EndedAt != nil:
		return consul.Op{}, fmt.Errorf("service %s: rollout %s has ended: %w", d.Service, is.Value.Rollout, ErrConflict)
	}
	return cas(key, d.Entry, is.Index), nil
}

func (s *Deployments) draftRCs(ctx context.Context, d *record.Draft, seen *record.Service,
	audit Audit,
) ([]Rec[rc.RC], error) {
	var rcs []Rec[rc.RC]
	for _, r := range d.Create {
		rcs = append(rcs, Rec[rc.RC]{Value: r})
	}
	for _, r := range d.Change {
		i := slices.IndexFunc(seen.Controllers, func(c record.Controller) bool { return c.RC.ID == r.ID })
		if i < 0 {
			return nil, fmt.Errorf("controller %s of service %s: %w", r.Name, d.Service, ErrConflict)
		}
		rcs = append(rcs, Rec[rc.RC]{Value: r, Index: seen.Controllers[i].Index})
	}
	for _, id := range d.Delete {
		rec, err := s.RCs.Get(ctx, Consistent, id)
		if errors.Is(err, ErrNotFound) || err == nil && rec.Value.DeletedAt != nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		at := audit.At.Truncate(time.Second)
		rec.Value.DeletedAt = &at
		rec.Value.Generation++
		rcs = append(rcs, rec)
	}
	for i := range rcs {
		rcs[i].Value.ChangedBy = audit.Who
	}
	return rcs, nil
}

// ListDeployed reads the deployed documents, by name, and a *CorruptError for each unreadable one.
func (s *Deployments) ListDeployed(ctx context.Context) ([]record.Deployed, []error, error) {
	names, err := s.ListServices(ctx)
	if err != nil {
		return nil, nil, err
	}
	recs, corrupt, err := s.Deployed.at(ctx, Default, s.keys.Deployed.Keys(names))
	return field.Each(recs, func(r Rec[record.Deployed]) record.Deployed { return r.Value }), corrupt, err
}

// ListRollouts reads the rollouts under way, and a *CorruptError for each unreadable one.
func (s *Deployments) ListRollouts(ctx context.Context) ([]Rec[rollout.Record], []error, error) {
	return s.Rollouts.listIf(ctx, s.keys.Rollouts.Key(), func(key string) bool {
		return !strings.Contains(strings.TrimPrefix(key, s.keys.Rollouts.Key()), "/")
	})
}

// ForgetService removes the records of a service and marks its controllers as deleted, in one transaction.
func (s *Deployments) ForgetService(ctx context.Context, svc *record.Service, massStop bool, audit Audit) error {
	name := svc.Deployed.Service
	ops := []consul.Op{
		consul.DeleteCAS(s.keys.Deployed.Key(name), svc.Index),
		consul.DeleteTree(s.keys.Entries.Below(name)), consul.CheckMissing(s.keys.Rollouts.Key(svc.Deployed.ID)),
	}
	at := audit.At.Truncate(time.Second)
	var marked []string
	for _, c := range svc.Controllers {
		if c.RC.DeletedAt != nil {
			continue
		}
		c.RC.DeletedAt, c.RC.ChangedBy = &at, audit.Who
		c.RC.Generation++
		if massStop {
			c.RC.AllowMassStop = c.RC.Generation
		}
		ops = append(ops, s.casRC(ctx, c.RC, c.Index))
		marked = append(marked, c.RC.ID)
	}
	ops = append(ops, s.rings(marked...)...)
	return s.commitDefinitely(ctx, "service "+name, audit, ops...)
}

// Deploy is a transaction that begins a rollout, or replaces one under way.
type Deploy struct {
	Rollout Rec[rollout.Record] // index zero: no rollout may exist; else the index of the rollout that it replaces
	// RCs are the new (index zero) and changed controllers.
	RCs []Rec[rc.RC]
	// Unchanged has, by id, the indices of other controllers that the plan relies on.
	Unchanged map[string]uint64
	// SchemaIndex is the index of the schema with the rollout's epoch.
	SchemaIndex uint64
	Manifests   []DeployManifest
	// Besides are further writes, each by cas: the service's document and its history.
	Besides []consul.Op
	Audit   Audit
}

// DeployManifest is a manifest to store.
type DeployManifest struct {
	Digest    string
	Canonical []byte // JSON
	Signature string // empty: keep the stored one
}

// Deploy begins a rollout in one transaction. It returns ErrConflict with the changed keys, ErrTooLarge, or ErrUnknown
// if the context ended before the outcome was known.
func (s *Deployments) Deploy(ctx context.Context, d Deploy) error {
	service, unit := d.Rollout.Value.Service, d.Rollout.Value.Unit()
	ops := []consul.Op{
		sameRecord(s.keys.Schema.Key(), d.SchemaIndex),
		cas(s.keys.Rollouts.Key(unit), d.Rollout.Value, d.Rollout.Index),
	}
	for id, index := range d.Unchanged {
		ops = append(ops, sameRecord(s.keys.RCs.Key(id), index))
	}
	if len(d.RCs) == 0 { // else the write of each controller rings the bell
		ops = append(ops, s.ring(unit))
	}
	return s.change(ctx, "deployment of "+service, append(ops, d.Besides...), d.Manifests, d.RCs, d.Audit)
}

// History reads a service's revisions, oldest first, and a *CorruptError for each unreadable one.
func (s *Deployments) History(ctx context.Context, service string) ([]Rec[record.Entry], []error, error) {
	recs, corrupt, err := s.Entries.List(ctx, consul.Consistent, service)
	slices.SortFunc(recs, func(a, b Rec[record.Entry]) int { return int(a.Value.Revision - b.Value.Revision) })
	return recs, corrupt, err
}

// Histories is History for all services, sorted by key.
func (s *Deployments) Histories(ctx context.Context) ([]Rec[record.Entry], []error, error) {
	return s.Entries.listIf(ctx, s.keys.Deployments.Key(), func(key string) bool {
		return strings.HasPrefix(key, s.keys.Entries.Below(s.keys.Entries.first(key)))
	})
}

// ListServices returns the names of all services, sorted.
func (s *Deployments) ListServices(ctx context.Context) ([]string, error) {
	keys, err := s.c.Children(ctx, s.keys.Deployments.Key())
	var names []string
	for _, key := range keys {
		if name, ok := strings.CutSuffix(strings.TrimPrefix(key, s.keys.Deployments.Key()), "/"); ok {
			names = append(names, name)
		}
	}
	return names, err
}
