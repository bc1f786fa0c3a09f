package simnode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// fleetGroups is how many standing queries a fleet has for the intents of all its nodes, unless it says something else.
const fleetGroups = 16

// Fleet is thousands of simulated nodes that share one client, one session and a few standing queries, so that the machine
// that measures a farm is not busy with the nodes. What the farm sees is the same as from real ones: locked records, and
// for each intent a reality under the node's lock together with the controller's bell. A fleet forgets what it runs when
// its session ends and lists no orphans; a Node does neither.
type Fleet struct {
	Name   string // of no other fleet with this prefix in Consul
	Size   int
	Client *consul.Client
	Store  *store.Store
	TTL    time.Duration
	// Groups is how many standing queries it has for the intents of all its nodes; 16. A change is seen in a list of the
	// intents of its group: where one change is measured among many pods, it should not be much longer than a node's own.
	Groups int
	// StartTime is how long a pod takes from its intent to being available, and from being told to stop to having stopped.
	StartTime time.Duration
	// Loops says which pods crash again and again: every LoopEvery each of them fails, starts or becomes available for a while.
	// nil: none.
	Loops     func(pod.Identity) bool
	LoopEvery time.Duration
	// CrashLooping: these pods do not come up again. Once available, each is crash-looping, and reports one restart more
	// every LoopEvery; the nodes of a group report together, one group after the other.
	CrashLooping bool
	// Prepare may change a node's record before it is written; nil changes nothing.
	Prepare func(i int, record *node.Node)
	// Told has farms tell each node of its intents, in place of standing queries; Groups is Size then. nil: they watch.
	Told *Told
	// OnIntent is told of each intent of a node that is new to it, before anything is done about it; nil: nobody is.
	OnIntent func(node string, in pod.Intent)
	// OnReady is called once every record is written and locked, in each tenure.
	OnReady func()
}

// NodeName is the name of the fleet's i-th node. The hexadecimal number is its group.
func (f *Fleet) NodeName(i int) string {
	return fmt.Sprintf("%s-%x-%05d", f.Name, i%f.groups(), i)
}

func (f *Fleet) groups() int { return cmp.Or(f.Groups, fleetGroups) }

// Run simulates the nodes until ctx ends.
func (f *Fleet) Run(ctx context.Context) error {
	var doors []*door
	if f.Told != nil {
		if f.groups() != f.Size {
			return errors.New("nodes that are told are in groups of one")
		}
		for i := range f.Size {
			d, err := f.Told.open(ctx, f.NodeName(i), f.Store, true)
			if err != nil {
				return err
			}
			doors = append(doors, d)
		}
	}
	return besides(ctx, doors, func(ctx context.Context) error { return f.sessions(ctx, doors) })
}

// sessions simulates the nodes, in one session after the other.
func (f *Fleet) sessions(ctx context.Context, doors []*door) error {
	// As a kind of its own it is no preparer in the catalog, where each would have to be the service of one node.
	cfg := consul.SessionConfig{Kind: "fleet", Name: f.Name, TTL: f.TTL, Journal: &Journal{}}
	return f.Client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
		t := &fleetSession{Fleet: f, session: s, doors: doors}
		schema, err := f.Store.EnsureSchema(ctx)
		if err != nil {
			return err
		}
		if err := t.acquire(ctx, schema.Value.Epoch); err != nil {
			return err
		}
		if f.OnReady != nil {
			f.OnReady()
		}
		return t.serve(ctx, schema.Value.Epoch)
	})
}

// fleetSession is one session of a fleet.
type fleetSession struct {
	*Fleet
	session *consul.Session
	doors   []*door // of each node; none: they watch
}

// acquire locks every record and writes it with the epoch, and makes the marker of each node's intents.
func (t *fleetSession) acquire(ctx context.Context, epoch string) error {
	keys := t.Store.Keys()
	var ops []consul.Op
	for i := range t.Size {
		record := node.Node{
			Name: t.NodeName(i), Capacity: node.Capacity{Slots: 100}, Address: "127.0.0.1",
			ConsulNode: t.session.ConsulNode, Incarnation: t.session.Incarnation, Epoch: epoch,
			OrphanPages: &node.OrphanPages{},
		}
		if t.Prepare != nil {
			t.Prepare(i, &record)
		}
		if t.doors != nil {
			t.doors[i].say(&record)
			t.doors[i].renew(epoch)
		}
		value, err := json.Marshal(record)
		if err != nil {
			return err
		}
		ops = append(ops,
			consul.Lock(keys.Nodes.Key(record.Name), value, t.session.Releasing),
			consul.Set(keys.Intents.Below(record.Name), nil))
	}
	return CommitAll(ctx, t.Client, slices.Collect(slices.Chunk(ops, consul.MaxTxnOps)))
}

// commitsAtOnce is how many transactions are in flight when many are to be written.
const commitsAtOnce = 4

// CommitAll carries out transactions, a few at once and in no order.
func CommitAll(ctx context.Context, c *consul.Client, txns [][]consul.Op) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(commitsAtOnce)
	for _, ops := range txns {
		group.Go(func() error {
			_, err := c.Commit(ctx, ops)
			return err
		})
	}
	return group.Wait()
}

// serve follows the cluster's epoch and the intents.
func (t *fleetSession) serve(ctx context.Context, epoch string) error {
	group, ctx := errgroup.WithContext(ctx)
	ignore := func(error) {}
	group.Go(func() error {
		return t.Store.WatchSchema(ctx, ignore, func(s store.Seen[store.Schema]) error {
			if len(s.Recs) == 0 || s.Recs[0].Value.Epoch == epoch {
				return nil
			}
			epoch = s.Recs[0].Value.Epoch
			return t.acquire(ctx, epoch)
		})
	})
	for g := range t.groups() {
		prefix := fmt.Sprintf("%s%s-%x-", t.intents(), t.Name, g)
		nodes := &fleetGroup{
			fleetSession: t, seen: map[string]uint64{}, applied: map[string]int64{}, written: map[string]pod.Reality{}, drops: map[string]int64{},
		}
		group.Go(func() error {
			if t.doors != nil {
				return nodes.pull(ctx, t.doors[g], prefix)
			}
			return t.Client.WatchPrefix(ctx, prefix, consul.WatchOptions{OnError: ignore}, func(s consul.Snapshot) error {
				return nodes.accept(ctx, s.Pairs, func() {})
			})
		})
		if t.Loops != nil {
			first := t.LoopEvery
			if t.CrashLooping {
				first = t.LoopEvery * time.Duration(g) / time.Duration(t.groups())
			}
			group.Go(func() error { return nodes.loop(ctx, first) })
		}
	}
	return group.Wait()
}

// fleetGroup is the part of a fleet that one standing query serves.
type fleetGroup struct {
	*fleetSession
	seen    map[string]uint64 // modify index of each intent, by key
	applied map[string]int64  // revision, by the intent's key

	mu      sync.Mutex             // guards what follows, and the realities in Consul
	written map[string]pod.Reality // as they are in Consul, by the intent's key
	drops   map[string]int64       // counted, by key
}

// pull reads the intents of a group of one node whenever its door says so.
func (g *fleetGroup) pull(ctx context.Context, d *door, prefix string) error {
	return d.follow(ctx, func(reading context.Context) error {
		return g.Client.WatchPrefix(reading, prefix, consul.WatchOptions{OnError: d.inbox.Failed, Next: d.inbox.Next}, func(s consul.Snapshot) error {
			return g.accept(ctx, s.Pairs, func() { d.inbox.Read(s.Index) })
		})
	})
}

// accept carries out what changed. Meanwhile nothing is watched, so that a burst of intents is read in two lists. It calls informed when it
// knows what is to be done.
func (g *fleetGroup) accept(ctx context.Context, pairs []consul.Pair, informed func()) error {
	var news []fleetReport
	now := make(map[string]uint64, len(pairs))
	for _, p := range pairs {
		now[p.Key] = p.ModifyIndex
		if g.seen[p.Key] == p.ModifyIndex || strings.HasSuffix(p.Key, "/") {
			continue
		}
		var in pod.Intent
		if err := json.Unmarshal(p.Value, &in); err != nil || in.Revision <= g.applied[p.Key] {
			continue // a real preparer ignores both too
		}
		g.applied[p.Key] = in.Revision
		r := Obey(in)
		r.Node, _, _ = strings.Cut(strings.TrimPrefix(p.Key, g.intents()), "/")
		news = append(news, fleetReport{p.Key, r})
		if g.OnIntent != nil {
			g.OnIntent(r.Node, in)
		}
	}
	informed()
	var gone []string
	for key := range g.seen {
		if now[key] == 0 {
			gone = append(gone, key)
		}
	}
	g.seen = now
	if len(news)+len(gone) == 0 {
		return nil
	}
	if err := wait.Pause(ctx, g.StartTime); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.report(ctx, news, gone)
}

// loop moves the pods that crash again and again on, for the first time after a while, until ctx ends.
func (g *fleetGroup) loop(ctx context.Context, first time.Duration) error {
	for next := first; ; next = g.LoopEvery {
		if err := wait.Pause(ctx, next); err != nil {
			return err
		}
		if err := g.crash(ctx); err != nil {
			return err
		}
	}
}

func (g *fleetGroup) crash(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var news []fleetReport
	for key, r := range g.written {
		if !g.Loops(r.Identity) {
			continue
		}
		switch r.Available = false; {
		case g.CrashLooping && (r.State == pod.StateReady || r.State == pod.StateCrashLooping):
			r.State, r.Hopeless, r.Restarts = pod.StateCrashLooping, true, max(pod.CrashLoop, r.Restarts+1)
			r.LastExit = &pod.Exit{Launchable: "main", Code: 1, At: time.Now().UTC()}
		case r.State == pod.StateReady:
			r.State, r.Restarts = pod.StateFailed, r.Restarts+1
		case r.State == pod.StateFailed:
			r.State = pod.StateStarting
		case r.State == pod.StateStarting:
			r.State, r.Available = pod.StateReady, true
		default:
			continue
		}
		news = append(news, fleetReport{key, r})
	}
	return g.report(ctx, news, nil)
}

// fleetReport is what becomes of an intent, by its key.
type fleetReport struct {
	key string
	pod.Reality
}

// intents is the prefix of the intents of all nodes.
func (t *fleetSession) intents() string {
	return t.Store.Keys().Intents.Key()
}

// report writes realities, each under its node's lock and with its controller's bell, and removes those whose intent is
// gone. Many share a transaction. Drops are counted as by a real preparer, but that a pod was told to stop is taken for granted.
// Transactions land in any order, so that each of them that has a drop says what is counted with all of them.
func (g *fleetGroup) report(ctx context.Context, news []fleetReport, gone []string) error {
	keys := g.Store.Keys()
	slices.SortFunc(news, func(a, b fleetReport) int { return a.Identity.Compare(b.Identity) })
	counters := map[string]string{} // of the drops among the news, by the intent's key
	for i := range news {
		r := &news[i]
		if was := g.written[r.key]; was.Drops(&r.Reality) && r.State != pod.StateStopped {
			counters[r.key] = keys.Drops.Key(r.RCID, r.Node)
			g.drops[counters[r.key]]++
		}
		g.written[r.key] = r.Reality
	}
	var txns [][]consul.Op
	ops := []consul.Op{}
	head := map[string]bool{} // locks, bells and counters that the transaction has
	flush := func() {
		if len(ops) > 0 {
			txns = append(txns, ops)
		}
		ops, head = nil, map[string]bool{}
	}
	once := func(op consul.Op) {
		if !head[op.Key()] {
			head[op.Key()] = true
			ops = append(ops, op)
		}
	}
	for _, r := range news {
		const most = 5
		if len(ops)+most > consul.MaxTxnOps {
			flush()
		}
		r.Since = time.Now().UTC()
		value, err := json.Marshal(r.Reality)
		if err != nil {
			return err
		}
		once(consul.CheckSession(keys.Nodes.Key(r.Node), g.session.Releasing))
		ops = append(ops, consul.Set(keys.Realities.Key(r.Node, r.Identity.String()), value))
		once(consul.Set(keys.Bells.Key(r.RCID), []byte(store.NewID())))
		if counter := counters[r.key]; counter != "" {
			once(consul.Set(keys.Drops.Key(r.RCID), []byte(store.NewID())))
			once(consul.Set(counter, strconv.AppendInt(nil, g.drops[counter], 10)))
		}
	}
	for _, key := range gone {
		if len(ops)+1 > consul.MaxTxnOps {
			flush()
		}
		delete(g.applied, key)
		delete(g.written, key)
		ops = append(ops, consul.Delete(keys.Realities.Key()+strings.TrimPrefix(key, g.intents())))
	}
	flush()
	err := CommitAll(ctx, g.Client, txns)
	if errors.Is(err, consul.ErrRefused) {
		return errors.Join(consul.ErrLost, err)
	}
	return err
}
