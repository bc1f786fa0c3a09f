package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
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

// Deployments are what is deployed of services, and how it changes.
type Deployments struct{ *db }

// Service reads all that a plan for a service is made from, or returns ErrNotFound. A record that cannot be read is a
// *CorruptError. It reads the rollout before the history and the controllers, because the end of a rollout changes
// these two: a service without a rollout is never shown with the history or the controllers of one that is under way.
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

// revisions reads the controllers of a service's revisions, the oldest first. They are found by their names.
func (s *Deployments) revisions(ctx context.Context, name string) ([]record.Controller, error) {
	names, err := s.c.Keys(ctx, s.keys.Names.Key(name+"-r"))
	if err != nil {
		return nil, err
	}
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(s.keys.Names.Key(name+"-r")) + "[0-9]+$")
	names = slices.DeleteFunc(names, func(key string) bool { return !ours.MatchString(key) })
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
			all = append(all, record.Controller{RC: rec.Value, Index: rec.Index, Status: s.statusOf(found, rec.Value.ID)})
		}
	}
	slices.SortFunc(all, func(a, b record.Controller) int { return int(a.RC.Service.Revision - b.RC.Service.Revision) })
	return all, nil
}

// DeployDraft writes a plan's draft in one transaction. Its errors are those of Deploy, and ErrSettingsChanged.
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
		manifests = append(manifests, DeployManifest{Digest: digest, Canonical: canonical, Signature: d.Signatures[digest]})
	}
	if d.Rollout != nil {
		schema, err := s.Schema.Get(ctx, Default)
		if err != nil {
			return fmt.Errorf("read schema: %w", err)
		}
		if schema.Value.Epoch != d.Rollout.Epoch {
			return fmt.Errorf("service %s: the cluster has another epoch since the plan was made: %w", d.Service, ErrConflict)
		}
		others := map[string]uint64{}
		for _, c := range seen.Controllers {
			if !slices.ContainsFunc(rcs, func(r Rec[rc.RC]) bool { return r.Value.ID == c.RC.ID }) {
				others[c.RC.ID] = c.Index
			}
		}
		return s.Deploy(ctx, Deploy{
			Rollout: Rec[rollout.Record]{Value: *d.Rollout, Index: seen.RolloutAt}, RCs: rcs, Unchanged: others, SchemaIndex: schema.Index,
			Manifests: manifests, Besides: ops, Audit: audit,
		})
	}
	if seen.Rollout == nil {
		ops = append(ops, consul.CheckMissing(s.keys.Rollouts.Key(d.Deployed.ID)))
	}
	return s.change(ctx, "service "+d.Service, ops, manifests, rcs, audit)
}

// entryOp writes the history of a draft. Where that leaves a rollout under way, the entry must not have its outcome
// yet: it would be written over.
func (s *Deployments) entryOp(ctx context.Context, d *record.Draft) (consul.Op, error) {
	revision := strconv.FormatInt(d.Deployed.Revision, 10)
	key := s.keys.Entries.Key(d.Service, revision)
	if d.Rollout != nil || d.Seen == nil || d.Seen.Rollout == nil {
		return set(key, d.Entry), nil
	}
	is, err := s.Entries.Get(ctx, Consistent, d.Service, revision)
	switch {
	case errors.Is(err, ErrNotFound): // then there is no index
	case err != nil:
		return consul.Op{}, err
	case is.Value.EndedAt != nil:
		return consul.Op{}, fmt.Errorf("service %s: rollout %s has ended: %w", d.Service, is.Value.Rollout, ErrConflict)
	}
	return cas(key, d.Entry, is.Index), nil
}

// draftRCs lists the controllers that a draft makes, changes and marks for deletion, with the indices that they were read at.
func (s *Deployments) draftRCs(ctx context.Context, d *record.Draft, seen *record.Service, audit Audit) ([]Rec[rc.RC], error) {
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

// ListDeployed reads what was deployed last of each service, by name, and one *CorruptError for each that cannot be
// read.
func (s *Deployments) ListDeployed(ctx context.Context) ([]record.Deployed, []error, error) {
	names, err := s.ListServices(ctx)
	if err != nil {
		return nil, nil, err
	}
	keys := field.Each(names, func(name string) string { return s.keys.Deployed.Key(name) })
	found, err := s.c.GetMany(ctx, keys, consul.Default)
	if err != nil {
		return nil, nil, err
	}
	var all []record.Deployed
	var corrupt []error
	for _, key := range keys {
		switch rec, err := s.Deployed.decodeIn(found, key); {
		case err != nil:
			corrupt = append(corrupt, err)
		case rec.Index != 0: // else it was deleted meanwhile
			all = append(all, rec.Value)
		}
	}
	return all, corrupt, nil
}

// ListRollouts reads the rollouts under way, and one *CorruptError for each that cannot be read.
func (s *Deployments) ListRollouts(ctx context.Context) ([]Rec[rollout.Record], []error, error) {
	pairs, err := s.c.List(ctx, s.keys.Rollouts.Key(), consul.Default)
	if err != nil {
		return nil, nil, err
	}
	pairs = slices.DeleteFunc(pairs, func(p consul.Pair) bool {
		return strings.Contains(strings.TrimPrefix(p.Key, s.keys.Rollouts.Key()), "/")
	})
	recs, corrupt := each(pairs, s.Rollouts.decode)
	return recs, corrupt, nil
}

// ForgetService removes what is known of a service, and marks the controllers of its revisions for deletion, in one transaction.
func (s *Deployments) ForgetService(ctx context.Context, svc *record.Service, massStop bool, audit Audit) error {
	name := svc.Deployed.Service
	ops := []consul.Op{consul.DeleteCAS(s.keys.Deployed.Key(name), svc.Index), consul.DeleteTree(s.keys.Entries.Below(name)), consul.CheckMissing(s.keys.Rollouts.Key(svc.Deployed.ID))}
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

// Deploy is the transaction that begins a rollout, or that replaces one under way.
type Deploy struct {
	Rollout Rec[rollout.Record] // index zero: there must be none; else that of the one that is replaced
	// RCs are the controllers that are made (index zero) or changed, each as it shall be.
	RCs []Rec[rc.RC]
	// Unchanged are the indices of other controllers that the plan relies on, by id.
	Unchanged map[string]uint64
	// SchemaIndex is that of the schema whose epoch the rollout bears.
	SchemaIndex uint64
	Manifests   []DeployManifest
	// Besides writes what else belongs to it, each by cas: the service's document and its history.
	Besides []consul.Op
	Audit   Audit
}

// DeployManifest is a manifest to store.
type DeployManifest struct {
	Digest    string
	Canonical []byte // JSON
	Signature string // empty: the stored one stays
}

// Deploy begins a rollout in one transaction: its record, controllers with what new ones have besides, bells,
// manifests, and all that is given besides. It returns ErrConflict when anything is not as it was read, with the keys
// in the text; ErrTooLarge; ErrUnknown when the context ended before the outcome was known. A landing is told by its
// audit record.
func (s *Deployments) Deploy(ctx context.Context, d Deploy) error {
	service, unit := d.Rollout.Value.Service, d.Rollout.Value.Unit()
	ops := []consul.Op{sameRecord(s.keys.Schema.Key(), d.SchemaIndex), cas(s.keys.Rollouts.Key(unit), d.Rollout.Value, d.Rollout.Index)}
	for id, index := range d.Unchanged {
		ops = append(ops, sameRecord(s.keys.RCs.Key(id), index))
	}
	if len(d.RCs) == 0 { // each of them rings
		ops = append(ops, s.ring(unit))
	}
	return s.change(ctx, "deployment of "+service, append(ops, d.Besides...), d.Manifests, d.RCs, d.Audit)
}

// History reads what a service's revisions were, the oldest first, and one *CorruptError for each that cannot be read.
func (s *Deployments) History(ctx context.Context, service string) ([]Rec[record.Entry], []error, error) {
	recs, corrupt, err := s.Entries.List(ctx, consul.Consistent, service)
	slices.SortFunc(recs, func(a, b Rec[record.Entry]) int { return int(a.Value.Revision - b.Value.Revision) })
	return recs, corrupt, err
}

// Histories reads what the revisions of all services were, in the order of their keys, and one *CorruptError for each
// that cannot be read.
func (s *Deployments) Histories(ctx context.Context) ([]Rec[record.Entry], []error, error) {
	pairs, err := s.c.List(ctx, s.keys.Deployments.Key(), consul.Default)
	if err != nil {
		return nil, nil, err
	}
	pairs = slices.DeleteFunc(pairs, func(p consul.Pair) bool {
		return !strings.HasPrefix(p.Key, s.keys.Entries.Below(s.keys.Entries.first(p.Key)))
	})
	recs, corrupt := each(pairs, s.Entries.decode)
	return recs, corrupt, nil
}

// ListServices returns the names of all services that have been deployed, sorted.
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
