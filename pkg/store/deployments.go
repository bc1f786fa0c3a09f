package store

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
)

// Deployments is the prefix of what is known about all services.
func (k Keys) Deployments() string { return k.prefix + "deployments/" }

// Deployment is the prefix of what is known about one service.
func (k Keys) Deployment(service string) string { return k.Deployments() + service + "/" }

// Deployed is the key of a service's document in effect.
func (k Keys) Deployed(service string) string { return k.Deployment(service) + "spec" }

// History is the prefix of what a service's revisions were.
func (k Keys) History(service string) string { return k.Deployment(service) + "history/" }

// Entry is the key of what one revision of a service was.
func (k Keys) Entry(service string, revision int64) string {
	return k.History(service) + strconv.FormatInt(revision, 10)
}

// Deployed reads the document of a service that is in effect, or on its way; or returns ErrNotFound.
func (s *Store) Deployed(ctx context.Context, service string) (Rec[record.Deployed], error) {
	return get[record.Deployed](ctx, s, s.keys.Deployed(service), consul.Consistent)
}

// History reads what a service's revisions were, the oldest first, and one *CorruptError for each that cannot be read.
func (s *Store) History(ctx context.Context, service string) ([]Rec[record.Entry], []error, error) {
	recs, corrupt, err := list[record.Entry](ctx, s, s.keys.History(service), consul.Consistent)
	slices.SortFunc(recs, func(a, b Rec[record.Entry]) int { return int(a.Value.Revision - b.Value.Revision) })
	return recs, corrupt, err
}

// ListServices returns the names of all services that have been deployed, sorted.
func (s *Store) ListServices(ctx context.Context) ([]string, error) {
	keys, err := s.c.Children(ctx, s.keys.Deployments())
	var names []string
	for _, key := range keys {
		if name, ok := strings.CutSuffix(strings.TrimPrefix(key, s.keys.Deployments()), "/"); ok {
			names = append(names, name)
		}
	}
	return names, err
}
