package store

import (
	"context"
	"path"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Seen is one delivery of a watch: every readable record below the prefix.
type Seen[T any] struct {
	Recs    []Rec[T]
	Index   uint64  // of Consul; the records are at least as new
	Corrupt []error // a *CorruptError for each record that cannot be read
	// WentBack: the store went back in time since the last delivery.
	WentBack bool
	// MarkerMissing: the prefix had lost its marker, as after a wipe. The watch has made it again.
	MarkerMissing bool
}

func (r *Records[T]) seen(snap consul.Snapshot, markerMissing bool) (s Seen[T]) {
	s.Index, s.WentBack, s.MarkerMissing = snap.Index, snap.WentBack, markerMissing
	s.Recs, s.Corrupt = r.each(snap.Pairs)
	return s
}

func (r *Records[T]) watch(ctx context.Context, prefix string, o consul.WatchOptions,
	deliver func(Seen[T]) error,
) error {
	return r.db.watchPrefix(ctx, prefix, o, func(snap consul.Snapshot, markerMissing bool) error {
		return deliver(r.seen(snap, markerMissing))
	})
}

// watchOne delivers one record. Recs is empty while it is missing.
func (r *Records[T]) watchOne(ctx context.Context, o consul.WatchOptions, deliver func(Seen[T]) error,
	id ...string,
) error {
	return r.db.c.WatchKey(ctx, r.Key(id...), o,
		func(snap consul.Snapshot) error { return deliver(r.seen(snap, false)) })
}

func (s *db) watchPrefix(ctx context.Context, prefix string, o consul.WatchOptions,
	deliver func(snap consul.Snapshot, markerMissing bool) error,
) error {
	return s.c.WatchPrefix(ctx, prefix, o, func(snap consul.Snapshot) error {
		missing := len(snap.Pairs) == 0 || snap.Pairs[0].Key != prefix // the keys are sorted, so the marker comes first
		if missing {
			if err := s.create(ctx, consul.CAS(prefix, nil, 0)); err != nil && ctx.Err() == nil {
				o.OnError(err)
			}
		}
		return deliver(snap, missing)
	})
}

// Watches has the blocking queries. Each delivers at once, and whenever a record has changed. It returns the context's
// cause or the error of deliver.
type Watches struct{ *db }

// Bells is one delivery of a bell watch.
type Bells struct {
	Index         map[string]uint64
	WentBack      bool
	MarkerMissing bool
}

// WatchBells delivers the bells of one shard.
func (w *Watches) WatchBells(ctx context.Context, shard int, onError func(error), deliver func(Bells) error) error {
	prefix := w.keys.Bells.Shard(shard)
	return w.watchPrefix(ctx, prefix, consul.WatchOptions{OnError: onError},
		func(snap consul.Snapshot, markerMissing bool) error {
			bells := Bells{
				Index: make(map[string]uint64, len(snap.Pairs)), WentBack: snap.WentBack,
				MarkerMissing: markerMissing,
			}
			for _, p := range snap.Pairs {
				if p.Key != prefix {
					bells.Index[path.Base(p.Key)] = p.ModifyIndex
				}
			}
			return deliver(bells)
		})
}

// WatchNodes delivers the nodes of one shard. Session is empty while no preparer holds a record.
func (w *Watches) WatchNodes(ctx context.Context, shard int, onError func(error),
	deliver func(Seen[node.Node]) error,
) error {
	return w.Nodes.watch(ctx, w.Nodes.Shard(shard), consul.WatchOptions{OnError: onError, Released: true}, deliver)
}

// WatchNodeOps delivers the operators' settings of all nodes.
func (w *Watches) WatchNodeOps(ctx context.Context, onError func(error), deliver func(Seen[node.Ops]) error) error {
	return w.NodeOps.watch(ctx, w.NodeOps.Key(), consul.WatchOptions{OnError: onError}, deliver)
}

// WatchFarms delivers the member records.
func (w *Watches) WatchFarms(ctx context.Context, onError func(error), deliver func(Seen[Member]) error) error {
	return w.Farms.watch(ctx, w.Farms.Key(), consul.WatchOptions{OnError: onError}, deliver)
}

// WatchIntents delivers one node's intents.
func (w *Watches) WatchIntents(ctx context.Context, nodeName string, onError func(error),
	deliver func(Seen[pod.Intent]) error,
) error {
	return w.Intents.watch(ctx, w.Intents.Below(nodeName), consul.WatchOptions{OnError: onError}, deliver)
}

// PullIntents is WatchIntents without a blocking query. It reads consistently at once, and whenever next returns. It
// delivers even if nothing has changed.
func (w *Watches) PullIntents(ctx context.Context, nodeName string, next func(context.Context) error,
	onError func(error), deliver func(Seen[pod.Intent]) error,
) error {
	return w.Intents.watch(ctx, w.Intents.Below(nodeName), consul.WatchOptions{OnError: onError, Next: next}, deliver)
}

// Epoch reads the cluster's epoch consistently.
func (w *Watches) Epoch(ctx context.Context) (string, error) {
	rec, err := w.Schema.Get(ctx, Consistent)
	return rec.Value.Epoch, err
}

// WatchSchema delivers the schema record.
func (w *Watches) WatchSchema(ctx context.Context, onError func(error), deliver func(Seen[Schema]) error) error {
	return w.Schema.watchOne(ctx, consul.WatchOptions{OnError: onError}, deliver)
}

// WatchBreaker delivers the breaker record.
func (w *Watches) WatchBreaker(ctx context.Context, onError func(error), deliver func(Seen[Breaker]) error) error {
	return w.Breaker.watchOne(ctx, consul.WatchOptions{OnError: onError}, deliver)
}

// WatchNode delivers the caller's own node. Only the caller makes this record. So if it was made again while the
// session was lost, the store went back in time.
func (w *Watches) WatchNode(ctx context.Context, nodeName string, onError func(error),
	deliver func(Seen[node.Node]) error,
) error {
	return w.Nodes.watchOne(ctx, consul.WatchOptions{OnError: onError, Released: true, Own: true}, deliver, nodeName)
}

// Node reads a node, or returns ErrNotFound.
func (w *Watches) Node(ctx context.Context, name string) (Rec[node.Node], error) {
	return w.Nodes.Get(ctx, Consistent, name)
}
