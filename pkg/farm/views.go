package farm

import (
	"context"
	"fmt"
	"reflect"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/reconcile"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (w *world) nodesSeen(ctx context.Context, shard int, s store.Seen[node.Node]) error {
	w.emit(unreadableFound{fmt.Sprintf("nodes/%x", shard), s.Corrupt})
	for _, err := range s.Corrupt {
		w.log.WithError(err).Error("a node is left out")
	}
	records := make(map[string]*node.View, len(s.Recs))
	for _, rec := range s.Recs {
		if known := w.now().schema.Value.Nonce; known != "" && rec.Session != "" && rec.Value.Regressed >= known {
			w.log.WithField(obs.Node, rec.Value.Name).Warn("a node saw the store go back in time")
			return w.regressedFrom(ctx, rec.Value.Regressed)
		}
		record := node.NewView(rec.Value, node.Ops{}, rec.Session != "")
		if !record.Alive {
			record.FreeIndex = rec.Index
		}
		records[rec.Value.Name] = record
	}
	w.mu.Lock()
	w.records[shard] = records
	changed, orphaned := w.publish()
	w.mu.Unlock()
	w.nodesChanged(changed, orphaned)
	if s.MarkerMissing {
		w.emit(recordsMissing{})
	}
	return nil
}

func (w *world) opsSeen(_ context.Context, s store.Seen[node.Ops]) error {
	w.emit(unreadableFound{"nodeops", s.Corrupt})
	for _, err := range s.Corrupt {
		w.log.WithError(err).Error("an operator's record of a node is left out")
	}
	ops := make(map[string]node.Ops, len(s.Recs))
	for _, rec := range s.Recs {
		ops[rec.Value.Name] = rec.Value
	}
	w.mu.Lock()
	w.ops, w.sources = ops, nil
	changed, orphaned := w.publish()
	w.mu.Unlock()
	w.nodesChanged(changed, orphaned)
	return nil
}

// publish joins records and ops into new views. It returns the nodes whose use for pods may have changed, and the
// controllers of orphans that came or went. The caller holds the mutex.
func (w *world) publish() (changed, orphaned map[string]bool) {
	views, sources := make(map[string]*node.View, len(w.views)), make(map[string]*node.View, len(w.views))
	orphans := map[string][]reconcile.Orphan{}
	changed, orphaned = map[string]bool{}, map[string]bool{}
	for _, records := range w.records {
		for name, record := range records {
			v := w.views[name]
			if w.sources[name] != record { // else its shard has delivered nothing new
				if next := w.join(record); v == nil || !reflect.DeepEqual(*v, *next) {
					v, changed[name] = next, true
				}
			}
			views[name], sources[name] = v, record
			for _, o := range v.Orphans {
				if v.Alive {
					orphans[o.RCID] = append(orphans[o.RCID], reconcile.Orphan{Node: name, Orphan: o})
				}
				if changed[name] {
					orphaned[o.RCID] = true
				}
			}
		}
	}
	for name := range w.views {
		if views[name] == nil {
			changed[name] = true
		}
	}
	if len(changed) > 0 || w.version == 0 {
		w.version++
		changes := make([]scheduler.NodeChange, 0, len(changed))
		for name := range changed {
			changes = append(changes, scheduler.NodeChange{Name: name, Was: w.views[name], Is: views[name]})
		}
		w.history.Add(w.version, changes)
	}
	w.views, w.sources, w.orphans = views, sources, orphans
	w.forgetOrphans()
	return changed, orphaned
}

// join returns the view of a node. The caller holds the mutex.
func (w *world) join(record *node.View) *node.View {
	v := *record
	v.SetOps(w.ops[v.Name])
	v.Gone = !v.Alive && w.gone[v.Name] == v.FreeIndex
	v.Orphans, v.OrphansUnread = w.orphansOn(&record.Node)
	return &v
}

// nodesChanged says which nodes have changed, and which controllers have orphans that came or went.
func (w *world) nodesChanged(changed, orphaned map[string]bool) {
	w.emit(nodesMoved{changed, orphaned})
	if len(changed) > 0 {
		wake(w.nodeDied)
		wake(w.orphansMoved)
	}
}
