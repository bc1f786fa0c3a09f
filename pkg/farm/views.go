package farm

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

func (w *cache) nodesSeen(_ context.Context, shard int, s store.Seen[node.Node]) error {
	w.emit(unreadableFound{fmt.Sprintf("nodes/%x", shard), s.Corrupt})
	for _, err := range s.Corrupt {
		w.log.WithError(err).Error("a node is left out")
	}
	records := make(map[string]*node.View, len(s.Recs))
	witness := false
	for _, rec := range s.Recs {
		witness = witness || rec.Session != "" && rec.Value.WentBack != ""
		record := node.NewView(rec.Value, node.Ops{}, rec.Session != "")
		if !record.Alive {
			record.FreeIndex = rec.Index
		}
		records[rec.Value.Name] = record
	}
	w.change(func() { w.records[shard] = records })
	if witness {
		w.emit(witnessFound{})
	}
	if s.MarkerMissing {
		w.emit(recordsMissing{})
	}
	return nil
}

// opsSeen takes what operators say of nodes. What cannot be read any more stays as it was read last: without its labels pods would leave (P4). Of what this
// farm never could read the views say so.
func (w *cache) opsSeen(_ context.Context, s store.Seen[node.Ops]) error {
	w.emit(unreadableFound{"nodeops", s.Corrupt})
	ops, unread := make(map[string]node.Ops, len(s.Recs)), store.CorruptAt(s.Corrupt)
	for name, text := range unread {
		w.log.WithField(obs.Node, name).WithField("why", text).Error("what operators say of a node cannot be read; what it was last, if that is known, stays in force")
		if last, ok := w.ops[name]; ok {
			ops[name] = last
			delete(unread, name)
		}
	}
	for _, rec := range s.Recs {
		ops[rec.Value.Name] = rec.Value
	}
	w.change(func() { w.ops, w.opsUnread, w.sources = ops, unread, nil })
	return nil
}

// publish joins records and ops into new views. It returns the nodes whose use for pods may have changed, and the
// controllers of orphans that came or went. The caller holds the mutex.
func (w *cache) publish() (changed, orphaned map[string]bool) {
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
func (w *cache) join(record *node.View) *node.View {
	v := *record
	v.SetOps(w.ops[v.Name])
	v.OpsUnread = w.opsUnread[v.Name]
	if lost := w.machinesLost[v.Name]; !v.Alive && lost.index == v.FreeIndex {
		v.MachineLost, v.LostSeen = true, lost.since
	}
	if index, lives := w.agentsLive[v.Name]; !v.Alive && lives && index == v.FreeIndex {
		v.AgentLives = true
	}
	switch before := w.views[v.Name]; {
	case v.Alive:
	case before != nil && before.FreeIndex == v.FreeIndex && (v.AgentLives || !before.AgentLives):
		v.DeadSeen = before.DeadSeen
	default:
		v.DeadSeen = time.Now()
	}
	v.Orphans, v.OrphansUnread = w.orphansOn(&record.Node)
	return &v
}

// change makes a change of what is known, under the lock, and says which nodes have changed by it, and which controllers have orphans that
// came or went.
func (w *cache) change(what func()) {
	changed, orphaned := w.changed(what)
	w.emit(nodesMoved{changed, orphaned})
	if len(changed) > 0 {
		w.nodeDied.Raise()
		w.orphansMoved.Raise()
	}
}

// changed is change, before anybody is told.
func (w *cache) changed(what func()) (changed, orphaned map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	what()
	return w.publish()
}

// The pace at which failed agents are asked for while a node has no preparer: often at first, rarely when nothing changes.
const (
	failedMin = 250 * time.Millisecond
	failedMax = 10 * time.Second
)

// watchFailed tells nodes that are gone from nodes that have only lost their preparer (R10). It asks while a node's lock is
// free, and not at all otherwise. An answer is about the deaths that were known when it was asked for: Consul may have meant
// an earlier one, of a machine that has come back since.
func (w *cache) watchFailed(ctx context.Context) error {
	pace := failedMin
	last := map[string]uint64{} // nodes without a preparer
	for {
		free := w.free()
		if !maps.Equal(free, last) {
			last, pace = free, failedMin
		}
		if len(free) > 0 {
			failed, err := w.store.FailedAgents(ctx)
			if err != nil && ctx.Err() == nil {
				w.log.WithError(err).Warn("cannot tell lost nodes from nodes without a preparer; none counts as lost anew")
			}
			if err == nil {
				w.failedSeen(free, failed, w.living(ctx, free, failed))
			}
			pace = min(pace*5/4, failedMax)
		}
		if _, err := wait.PauseUnless(ctx, w.nodeDied, pace); err != nil {
			return err
		}
	}
}

// free returns the nodes whose preparers do not hold their records, with the indices that these have since.
func (w *cache) free() map[string]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	free := map[string]uint64{}
	for name, v := range w.views {
		if !v.Alive {
			free[name] = v.FreeIndex
		}
	}
	return free
}

// living returns which machines live, of those that are asked about and have not failed. One of which nobody can tell counts as living: nothing is
// done then that depends on its being silent.
func (w *cache) living(ctx context.Context, asked map[string]uint64, failed map[string]bool) map[string]bool {
	views, _ := w.nodesAt()
	var agents []string
	for name := range asked {
		if v := views[name]; v != nil && !failed[v.ConsulNode] {
			agents = append(agents, v.ConsulNode)
		}
	}
	if len(agents) == 0 {
		return nil
	}
	living, err := w.store.LivingAgents(ctx, agents)
	if err == nil {
		return living
	}
	if ctx.Err() == nil {
		w.log.WithError(err).Warn("cannot tell which nodes without a preparer are on machines that live; all that have not failed count as such")
	}
	living = map[string]bool{}
	for _, agent := range agents {
		living[agent] = true
	}
	return living
}

// failedSeen uses an answer: which of the nodes that were free when it was asked for are on machines that have failed, and which on machines that
// live. One whose agent nobody knows is of neither (R10).
func (w *cache) failedSeen(asked map[string]uint64, failed, living map[string]bool) {
	views, _ := w.nodesAt()
	lost, lives := map[string]lostMachine{}, map[string]uint64{}
	for name, index := range asked {
		switch v := views[name]; {
		case v == nil:
		case failed[v.ConsulNode]:
			lost[name] = w.machinesLost[name]
			if lost[name].index != index {
				lost[name] = lostMachine{index: index, since: time.Now()}
			}
		case living[v.ConsulNode]:
			lives[name] = index
		}
	}
	if !maps.Equal(lost, w.machinesLost) || !maps.Equal(lives, w.agentsLive) {
		w.change(func() { w.machinesLost, w.agentsLive, w.sources = lost, lives, nil })
	}
}
