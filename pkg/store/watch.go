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
	Index   uint64  // of Consul's, which what was read includes
	Corrupt []error // a *CorruptError for each record that cannot be read
	// WentBack says that the store went back in time since the last delivery.
	WentBack bool
	// MarkerMissing says that the prefix had lost its marker key, as after a wipe. It has been recreated.
	MarkerMissing bool
}

// seen is what a snapshot shows of these records.
func (r *Records[T]) seen(snap consul.Snapshot, markerMissing bool) (s Seen[T]) {
	s.Index, s.WentBack, s.MarkerMissing = snap.Index, snap.WentBack, markerMissing
	s.Recs, s.Corrupt = each(snap.Pairs, r.decode)
	return s
}

// watch delivers the records below a prefix that has a marker key.
func (r *Records[T]) watch(ctx context.Context, prefix string, o consul.WatchOptions, deliver func(Seen[T]) error) error {
	return r.db.watchPrefix(ctx, prefix, o, func(snap consul.Snapshot, markerMissing bool) error {
		return deliver(r.seen(snap, markerMissing))
	})
}

// watchOne delivers one record; Recs is empty while it is missing.
func (r *Records[T]) watchOne(ctx context.Context, o consul.WatchOptions, deliver func(Seen[T]) error, id ...string) error {
	return r.db.c.WatchKey(ctx, r.Key(id...), o, func(snap consul.Snapshot) error { return deliver(r.seen(snap, false)) })
}

// watchPrefix watches what has a marker key, and makes the marker where it is missing.
func (s *db) watchPrefix(ctx context.Context, prefix string, o consul.WatchOptions, deliver func(snap consul.Snapshot, markerMissing bool) error) error {
	return s.c.WatchPrefix(ctx, prefix, o, func(snap consul.Snapshot) error {
		missing := len(snap.Pairs) == 0 || snap.Pairs[0].Key != prefix // keys come sorted
		if missing {
			if err := s.create(ctx, consul.CAS(prefix, nil, 0)); err != nil && ctx.Err() == nil {
				o.OnError(err)
			}
		}
		return deliver(snap, missing)
	})
}

// Watches are the standing queries. Each delivers at once, and whenever something has changed. It returns the context's cause or the
// error of deliver.
type Watches struct{ *db }

// Bells is one delivery of a bell watch: the index of each bell by unit.
type Bells struct {
	Index         map[string]uint64
	WentBack      bool
	MarkerMissing bool
}

// WatchBells delivers the bells of one shard at once and whenever one changes. It returns the context's cause or the
// error of deliver.
func (s *Watches) WatchBells(ctx context.Context, shard int, onError func(error), deliver func(Bells) error) error {
	prefix := s.keys.Bells.Shard(shard)
	return s.watchPrefix(ctx, prefix, consul.WatchOptions{OnError: onError}, func(snap consul.Snapshot, markerMissing bool) error {
		bells := Bells{Index: make(map[string]uint64, len(snap.Pairs)), WentBack: snap.WentBack, MarkerMissing: markerMissing}
		for _, p := range snap.Pairs {
			if p.Key != prefix {
				bells.Index[path.Base(p.Key)] = p.ModifyIndex
			}
		}
		return deliver(bells)
	})
}

// WatchNodes delivers the node records of one shard. A record's Session is empty while no preparer holds it.
func (s *Watches) WatchNodes(ctx context.Context, shard int, onError func(error), deliver func(Seen[node.Node]) error) error {
	return s.Nodes.watch(ctx, s.Nodes.Shard(shard), consul.WatchOptions{OnError: onError, Released: true}, deliver)
}

// WatchNodeOps delivers the operators' side of all nodes.
func (s *Watches) WatchNodeOps(ctx context.Context, onError func(error), deliver func(Seen[node.Ops]) error) error {
	return s.NodeOps.watch(ctx, s.NodeOps.Key(), consul.WatchOptions{OnError: onError}, deliver)
}

// WatchFarms delivers the member records.
func (s *Watches) WatchFarms(ctx context.Context, onError func(error), deliver func(Seen[Member]) error) error {
	return s.Farms.watch(ctx, s.Farms.Key(), consul.WatchOptions{OnError: onError}, deliver)
}

// WatchIntents delivers what one node must do.
func (s *Watches) WatchIntents(ctx context.Context, nodeName string, onError func(error), deliver func(Seen[pod.Intent]) error) error {
	return s.Intents.watch(ctx, s.Intents.Below(nodeName), consul.WatchOptions{OnError: onError}, deliver)
}

// PullIntents is WatchIntents without a standing query: it reads at once, and whenever next returns, consistently, and delivers that also where
// nothing has changed.
func (s *Watches) PullIntents(ctx context.Context, nodeName string, next func(context.Context) error, onError func(error), deliver func(Seen[pod.Intent]) error) error {
	return s.Intents.watch(ctx, s.Intents.Below(nodeName), consul.WatchOptions{OnError: onError, Next: next}, deliver)
}

// Epoch reads the cluster's epoch, consistently.
func (s *Watches) Epoch(ctx context.Context) (string, error) {
	rec, err := s.Schema.Get(ctx, Consistent)
	return rec.Value.Epoch, err
}

// WatchSchema delivers the schema record.
func (s *Watches) WatchSchema(ctx context.Context, onError func(error), deliver func(Seen[Schema]) error) error {
	return s.Schema.watchOne(ctx, consul.WatchOptions{OnError: onError}, deliver)
}

// WatchBreaker delivers the breaker record.
func (s *Watches) WatchBreaker(ctx context.Context, onError func(error), deliver func(Seen[Breaker]) error) error {
	return s.Breaker.watchOne(ctx, consul.WatchOptions{OnError: onError}, deliver)
}

// WatchNode delivers the record of the caller's own node. Nobody else makes it: where it was made anew while the session was lost, that is
// reported as a return in time.
func (s *Watches) WatchNode(ctx context.Context, nodeName string, onError func(error), deliver func(Seen[node.Node]) error) error {
	return s.Nodes.watchOne(ctx, consul.WatchOptions{OnError: onError, Released: true, Own: true}, deliver, nodeName)
}

// Node reads the record of a node, or returns ErrNotFound.
func (s *Watches) Node(ctx context.Context, name string) (Rec[node.Node], error) {
	return s.Nodes.Get(ctx, Consistent, name)
}
