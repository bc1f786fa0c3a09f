package store

import (
	"context"
	"path"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Seen is one delivery of a watch: every record below the watched prefix that can be read.
type Seen[T any] struct {
	Recs    []Rec[T]
	Corrupt []error // a *CorruptError for each record that cannot be read
	// Regressed says that the store went back in time since the last delivery.
	Regressed bool
	// MarkerMissing says that the prefix had lost its marker key, as after a wipe. It has been recreated.
	MarkerMissing bool
}

func watch[T any](ctx context.Context, s *Store, prefix string, o consul.WatchOptions, deliver func(Seen[T]) error) error {
	return s.watchPrefix(ctx, prefix, o, func(snap consul.Snapshot, markerMissing bool) error {
		seen := Seen[T]{Regressed: snap.Regressed, MarkerMissing: markerMissing}
		seen.Recs, seen.Corrupt = decodeAll[T](s.keys, snap.Pairs)
		return deliver(seen)
	})
}

// watchPrefix watches what has a marker key, and makes the marker where it is missing.
func (s *Store) watchPrefix(ctx context.Context, prefix string, o consul.WatchOptions, deliver func(snap consul.Snapshot, markerMissing bool) error) error {
	return s.c.WatchPrefix(ctx, prefix, o, func(snap consul.Snapshot) error {
		missing := len(snap.Pairs) == 0 || snap.Pairs[0].Key != prefix // keys come sorted
		if missing {
			if err := s.create(ctx, prefix, nil); err != nil && ctx.Err() == nil {
				o.OnError(err)
			}
		}
		return deliver(snap, missing)
	})
}

// Bells is one delivery of a bell watch: the index of each bell by controller id.
type Bells struct {
	Index         map[string]uint64
	Regressed     bool
	MarkerMissing bool
}

// WatchBells delivers the bells of one shard at once and whenever one changes. It returns the context's cause or the
// error of deliver.
func (s *Store) WatchBells(ctx context.Context, shard int, onError func(error), deliver func(Bells) error) error {
	prefix := s.keys.Bells.Shard(shard)
	return s.watchPrefix(ctx, prefix, consul.WatchOptions{OnError: onError}, func(snap consul.Snapshot, markerMissing bool) error {
		bells := Bells{Index: make(map[string]uint64, len(snap.Pairs)), Regressed: snap.Regressed, MarkerMissing: markerMissing}
		for _, p := range snap.Pairs {
			if p.Key != prefix {
				bells.Index[path.Base(p.Key)] = p.ModifyIndex
			}
		}
		return deliver(bells)
	})
}

// WatchNodes delivers the node records of one shard. A record's Session is empty while no preparer holds it.
func (s *Store) WatchNodes(ctx context.Context, shard int, onError func(error), deliver func(Seen[node.Node]) error) error {
	return watch(ctx, s, s.keys.Nodes.Shard(shard), consul.WatchOptions{OnError: onError, Released: true}, deliver)
}

// WatchNodeOps delivers the operators' side of all nodes.
func (s *Store) WatchNodeOps(ctx context.Context, onError func(error), deliver func(Seen[node.Ops]) error) error {
	return watch(ctx, s, s.keys.NodeOps.Key(), consul.WatchOptions{OnError: onError}, deliver)
}

// WatchFarms delivers the member records.
func (s *Store) WatchFarms(ctx context.Context, onError func(error), deliver func(Seen[Member]) error) error {
	return watch(ctx, s, s.keys.Farms.Key(), consul.WatchOptions{OnError: onError}, deliver)
}

// WatchIntents delivers what one node must do.
func (s *Store) WatchIntents(ctx context.Context, nodeName string, onError func(error), deliver func(Seen[pod.Intent]) error) error {
	return watch(ctx, s, s.keys.Intents.Below(nodeName), consul.WatchOptions{OnError: onError}, deliver)
}

// WatchSchema delivers the schema record; Recs is empty while it is missing.
func (s *Store) WatchSchema(ctx context.Context, onError func(error), deliver func(Seen[Schema]) error) error {
	return watchKey(ctx, s, s.keys.Schema.Key(), consul.WatchOptions{OnError: onError}, deliver)
}

// WatchBreaker delivers the breaker record; Recs is empty while it is missing.
func (s *Store) WatchBreaker(ctx context.Context, onError func(error), deliver func(Seen[Breaker]) error) error {
	return watchKey(ctx, s, s.keys.Breaker.Key(), consul.WatchOptions{OnError: onError}, deliver)
}

// WatchNode delivers the record of the caller's own node; Recs is empty while it is missing. Nobody else makes it: where it was
// made anew while the session was lost, that is reported as a return in time.
func (s *Store) WatchNode(ctx context.Context, nodeName string, onError func(error), deliver func(Seen[node.Node]) error) error {
	return watchKey(ctx, s, s.keys.Nodes.Key(nodeName), consul.WatchOptions{OnError: onError, Released: true, Own: true}, deliver)
}

func watchKey[T any](ctx context.Context, s *Store, key string, o consul.WatchOptions, deliver func(Seen[T]) error) error {
	return s.c.WatchKey(ctx, key, o, func(snap consul.Snapshot) error {
		seen := Seen[T]{Regressed: snap.Regressed}
		seen.Recs, seen.Corrupt = decodeAll[T](s.keys, snap.Pairs)
		return deliver(seen)
	})
}
