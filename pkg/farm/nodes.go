package farm

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

type nodeViews struct {
	store Session
	log   obs.Logger
	emit  func(event) // called without the lock

	mu           sync.Mutex
	records      [store.Shards]map[string]*node.View // without the operators' records
	ops          map[string]node.Ops
	opsUnread    map[string]string     // by node: why this farm could never read the operators' record
	views        map[string]*node.View // records and ops joined; never changed once published
	version      uint64                // of the views; grows by one when they change
	history      scheduler.History     // of the views
	sources      map[string]*node.View // the records that the views were made of; nil: make all views again
	orphans      map[string][]reconcile.Orphan
	listed       map[string]orphanList  // by node: its pages of orphans as last read
	machinesLost map[string]lostMachine // nodes whose machines have failed
	agentsLive   map[string]uint64      // dead nodes whose Consul agents live, with the FreeIndex when Consul was asked
	nodeDied     wait.Signal            // wakes the query for failed agents
	orphansMoved wait.Signal            // wakes the reading of pages of orphans
}

// lostMachine has the FreeIndex of a node when Consul was asked, and when this farm first saw that its machine has
// failed.
type lostMachine struct {
	index uint64
	since time.Time
}

func newNodeViews(st Session, log obs.Logger, emit func(event)) nodeViews {
	return nodeViews{
		store: st, log: log, emit: emit, listed: map[string]orphanList{},
		nodeDied: wait.NewSignal(), orphansMoved: wait.NewSignal(),
	}
}

func (n *nodeViews) nodesSeen(_ context.Context, shard int, s store.Seen[node.Node]) error {
	n.emit(unreadableFound{fmt.Sprintf("nodes/%x", shard), s.Corrupt})
	for _, err := range s.Corrupt {
		n.log.WithError(err).Error("a node is left out")
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
	n.change(func() { n.records[shard] = records })
	if witness {
		n.emit(witnessFound{})
	}
	if s.MarkerMissing {
		n.emit(recordsMissing{})
	}
	return nil
}

// opsSeen records the operators' settings of nodes. A record that cannot be read any more keeps its last value, because
// otherwise pods would be moved off the node for lack of labels (P4).
func (n *nodeViews) opsSeen(_ context.Context, s store.Seen[node.Ops]) error {
	n.emit(unreadableFound{"nodeops", s.Corrupt})
	ops, unread := make(map[string]node.Ops, len(s.Recs)), store.CorruptAt(s.Corrupt)
	for name, text := range unread {
		n.log.WithField(obs.Node, name).WithField("why", text).
			Error("the operators' record of a node cannot be read; its last value stays in force if this farm knows it")
		if last, ok := n.ops[name]; ok {
			ops[name] = last
			delete(unread, name)
		}
	}
	for _, rec := range s.Recs {
		ops[rec.Value.Name] = rec.Value
	}
	n.change(func() { n.ops, n.opsUnread, n.sources = ops, unread, nil })
	return nil
}

// publish makes new views. It returns the nodes whose use for pods may have changed, and the controllers of orphans
// that appeared or vanished. The caller holds the mutex.
func (n *nodeViews) publish() (changed, orphaned map[string]bool) {
	views, sources := make(map[string]*node.View, len(n.views)), make(map[string]*node.View, len(n.views))
	orphans := map[string][]reconcile.Orphan{}
	changed, orphaned = map[string]bool{}, map[string]bool{}
	for _, records := range n.records {
		for name, record := range records {
			v := n.views[name]
			if n.sources[name] != record { // its shard has delivered again
				if next := n.join(record); v == nil || !reflect.DeepEqual(*v, *next) {
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
	for name := range n.views {
		if views[name] == nil {
			changed[name] = true
		}
	}
	if len(changed) > 0 || n.version == 0 {
		n.version++
		changes := make([]scheduler.NodeChange, 0, len(changed))
		for name := range changed {
			changes = append(changes, scheduler.NodeChange{Name: name, Was: n.views[name], Is: views[name]})
		}
		n.history.Add(n.version, changes)
	}
	n.views, n.sources, n.orphans = views, sources, orphans
	n.forgetOrphans()
	return changed, orphaned
}

// join returns the view of a node. The caller holds the mutex.
func (n *nodeViews) join(record *node.View) *node.View {
	v := *record
	v.SetOps(n.ops[v.Name])
	v.OpsUnread = n.opsUnread[v.Name]
	if lost := n.machinesLost[v.Name]; !v.Alive && lost.index == v.FreeIndex {
		v.MachineLost, v.LostSeen = true, lost.since
	}
	if index, lives := n.agentsLive[v.Name]; !v.Alive && lives && index == v.FreeIndex {
		v.AgentLives = true
	}
	switch before := n.views[v.Name]; {
	case v.Alive:
	case before != nil && before.FreeIndex == v.FreeIndex && (v.AgentLives || !before.AgentLives):
		v.DeadSeen = before.DeadSeen
	default:
		v.DeadSeen = time.Now()
	}
	v.Orphans, v.OrphansUnread = n.orphansOn(&record.Node)
	return &v
}

// change applies a change under the lock, and emits what has changed.
func (n *nodeViews) change(what func()) {
	changed, orphaned := n.changed(what)
	n.emit(nodesMoved{changed, orphaned})
	if len(changed) > 0 {
		n.nodeDied.Raise()
		n.orphansMoved.Raise()
	}
}

// changed is change without the event.
func (n *nodeViews) changed(what func()) (changed, orphaned map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	what()
	return n.publish()
}

// While a node is dead, the farm asks for failed agents: often at first, rarely if nothing changes.
const (
	failedMin = 250 * time.Millisecond
	failedMax = 10 * time.Second
)

// watchFailed finds out which dead nodes are lost, and which have only lost their preparer (R10). An answer is used
// only for deaths that were known before the question. Otherwise it could be about an earlier failure of a machine that
// has come back since.
func (n *nodeViews) watchFailed(ctx context.Context) error {
	pace := failedMin
	last := map[string]uint64{} // nodes without a preparer
	for {
		free := n.free()
		if !maps.Equal(free, last) {
			last, pace = free, failedMin
		}
		if len(free) > 0 {
			failed, err := n.store.FailedAgents(ctx)
			if err != nil && ctx.Err() == nil {
				n.log.WithError(err).
					Warn("cannot tell lost nodes from nodes without a preparer; no other node is taken for lost")
			}
			if err == nil {
				n.failedSeen(free, failed, n.living(ctx, free, failed))
			}
			pace = min(pace*5/4, failedMax)
		}
		if _, err := wait.PauseUnless(ctx, n.nodeDied, pace); err != nil {
			return err
		}
	}
}

func (n *nodeViews) free() map[string]uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	free := map[string]uint64{}
	for name, v := range n.views {
		if !v.Alive {
			free[name] = v.FreeIndex
		}
	}
	return free
}

// living returns the machines of the nodes in asked whose agent lives, without those in failed. Without an answer it
// returns all of them, so that the farm does nothing that depends on a machine's silence.
func (n *nodeViews) living(ctx context.Context, asked map[string]uint64, failed map[string]bool) map[string]bool {
	views, _ := n.nodesAt()
	var agents []string
	for name := range asked {
		if v := views[name]; v != nil && !failed[v.ConsulNode] {
			agents = append(agents, v.ConsulNode)
		}
	}
	if len(agents) == 0 {
		return nil
	}
	living, err := n.store.LivingAgents(ctx, agents)
	if err == nil {
		return living
	}
	if ctx.Err() == nil {
		n.log.WithError(err).
			Warn("cannot tell which machines without a preparer live; those that have not failed are taken for living")
	}
	living = map[string]bool{}
	for _, agent := range agents {
		living[agent] = true
	}
	return living
}

// failedSeen records an answer about the nodes that were dead when the question was asked. If Consul does not know the
// agent of a machine, the machine is neither failed nor living (R10).
func (n *nodeViews) failedSeen(asked map[string]uint64, failed, living map[string]bool) {
	views, _ := n.nodesAt()
	lost, lives := map[string]lostMachine{}, map[string]uint64{}
	for name, index := range asked {
		switch v := views[name]; {
		case v == nil:
		case failed[v.ConsulNode]:
			lost[name] = n.machinesLost[name]
			if lost[name].index != index {
				lost[name] = lostMachine{index: index, since: time.Now()}
			}
		case living[v.ConsulNode]:
			lives[name] = index
		}
	}
	if !maps.Equal(lost, n.machinesLost) || !maps.Equal(lives, n.agentsLive) {
		n.change(func() { n.machinesLost, n.agentsLive, n.sources = lost, lives, nil })
	}
}

func (n *nodeViews) nodesAt() (map[string]*node.View, uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.views, n.version
}

// between returns the changes between two versions of the views; ok is false if they are not known any more.
func (n *nodeViews) between(from, to uint64) (changes []scheduler.NodeChange, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.history.Between(from, to)
}

func (n *nodeViews) orphansOf(rcID string) []reconcile.Orphan {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.orphans[rcID]
}

// silent returns the passing nodes that have not reported what they run, without those that operators have released
// from the hold of this epoch.
func (n *nodeViews) silent(passing []string, epoch string) (silent, released []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range passing {
		switch v := n.views[name]; {
		case v != nil && v.Spoke(epoch):
		case n.ops[name].HoldReleased == epoch:
			released = append(released, name)
		default:
			silent = append(silent, name)
		}
	}
	return silent, released
}
