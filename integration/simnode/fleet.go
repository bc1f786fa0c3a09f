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

const fleetGroups = 16

// Fleet is thousands of simulated nodes that share one client, one session and a few standing queries, so that the
// nodes do not load the machine that measures a farm. The farm sees the same records as from real nodes: locked node
// records, and for each intent a reality, written under the node's lock together with the controller's bell.
//
// When its session ends, a Fleet forgets which pods it runs. Unlike a Node, it lists no orphans.
type Fleet struct {
	Name   string // of no other fleet with this prefix in Consul
	Size   int
	Client *consul.Client
	Store  *store.Store
	TTL    time.Duration
	// Groups is how many standing queries serve the nodes' intents; 0: 16. After each change, the fleet reads all
	// intents of the group, so measurements of one change need small groups.
	Groups int
	// StartTime is how long a pod takes to become available, or to stop, after its intent.
	StartTime time.Duration
	// Loops reports which pods crash again and again: every LoopEvery, each of them fails, starts, or becomes available
	// for a while. nil: no pod does.
	Loops     func(pod.Identity) bool
	LoopEvery time.Duration
	// CrashLooping: the pods of Loops are available only once. After that they report one more restart every LoopEvery.
	// The nodes of a group report together, one group after the other.
	CrashLooping bool
	Prepare      func(i int, record *node.Node)
	// Told makes farms push to each node, in place of standing queries. Groups must then be Size.
	Told     *Told
	OnIntent func(node string, in pod.Intent)
	// OnReady is called in each session, after every record is written and locked.
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

func (f *Fleet) sessions(ctx context.Context, doors []*door) error {
	// The kind is not "preparer", because in the catalog each preparer is the service of exactly one node.
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

type fleetSession struct {
	*Fleet
	session *consul.Session
	doors   []*door // one for each node; nil: the nodes watch their intents
}

func (f *fleetSession) acquire(ctx context.Context, epoch string) error {
	keys := f.Store.Keys()
	var ops []consul.Op
	for i := range f.Size {
		record := node.Node{
			Name: f.NodeName(i), Capacity: node.Capacity{Slots: 100}, Address: "127.0.0.1",
			ConsulNode: f.session.ConsulNode, Incarnation: f.session.Incarnation, Epoch: epoch,
			OrphanPages: &node.OrphanPages{},
		}
		if f.Prepare != nil {
			f.Prepare(i, &record)
		}
		if f.doors != nil {
			f.doors[i].say(&record)
			f.doors[i].renew(epoch)
		}
		value, err := json.Marshal(record)
		if err != nil {
			return err
		}
		ops = append(ops,
			consul.Lock(keys.Nodes.Key(record.Name), value, f.session.Releasing),
			consul.Set(keys.Intents.Below(record.Name), nil))
	}
	return CommitAll(ctx, f.Client, slices.Collect(slices.Chunk(ops, consul.MaxTxnOps)))
}

const commitsAtOnce = 4

// CommitAll carries out transactions, a few at once and in any order.
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

func (f *fleetSession) serve(ctx context.Context, epoch string) error {
	group, ctx := errgroup.WithContext(ctx)
	ignore := func(error) {}
	group.Go(func() error {
		return f.Store.WatchSchema(ctx, ignore, func(s store.Seen[store.Schema]) error {
			if len(s.Recs) == 0 || s.Recs[0].Value.Epoch == epoch {
				return nil
			}
			epoch = s.Recs[0].Value.Epoch
			return f.acquire(ctx, epoch)
		})
	})
	for g := range f.groups() {
		prefix := fmt.Sprintf("%s%s-%x-", f.intents(), f.Name, g)
		nodes := &fleetGroup{
			fleetSession: f, seen: map[string]uint64{}, applied: map[string]int64{},
			written: map[string]pod.Reality{}, drops: map[string]int64{},
		}
		group.Go(func() error {
			if f.doors != nil {
				return nodes.pull(ctx, f.doors[g], prefix)
			}
			return f.Client.WatchPrefix(ctx, prefix,
				consul.WatchOptions{OnError: ignore}, func(s consul.Snapshot) error {
					return nodes.accept(ctx, s.Pairs, func() {})
				})
		})
		if f.Loops != nil {
			first := f.LoopEvery
			if f.CrashLooping {
				first = f.LoopEvery * time.Duration(g) / time.Duration(f.groups())
			}
			group.Go(func() error { return nodes.loop(ctx, first) })
		}
	}
	return group.Wait()
}

type fleetGroup struct {
	*fleetSession
	seen    map[string]uint64 // modify index of each intent, by key
	applied map[string]int64  // applied revision, by the intent's key

	mu      sync.Mutex             // guards the next two fields, and the realities in Consul
	written map[string]pod.Reality // as they are in Consul, by the intent's key
	drops   map[string]int64       // number of drops, by the counter's key
}

func (f *fleetGroup) pull(ctx context.Context, d *door, prefix string) error {
	return d.follow(ctx, func(reading context.Context) error {
		return f.Client.WatchPrefix(reading, prefix, consul.WatchOptions{OnError: d.inbox.Failed, Next: d.inbox.Next},
			func(s consul.Snapshot) error {
				return f.accept(ctx, s.Pairs, func() { d.inbox.Read(s.Index) })
			})
	})
}

// accept carries out the intents that changed, and calls informed after it has read them. The watch waits until accept
// returns, so a burst of intents is read in two lists.
func (f *fleetGroup) accept(ctx context.Context, pairs []consul.Pair, informed func()) error {
	var news []fleetReport
	now := make(map[string]uint64, len(pairs))
	for _, p := range pairs {
		now[p.Key] = p.ModifyIndex
		if f.seen[p.Key] == p.ModifyIndex || strings.HasSuffix(p.Key, "/") {
			continue
		}
		var in pod.Intent
		if err := json.Unmarshal(p.Value, &in); err != nil || in.Revision <= f.applied[p.Key] {
			continue // a real preparer ignores both too
		}
		f.applied[p.Key] = in.Revision
		r := Obey(in)
		r.Node, _, _ = strings.Cut(strings.TrimPrefix(p.Key, f.intents()), "/")
		news = append(news, fleetReport{p.Key, r})
		if f.OnIntent != nil {
			f.OnIntent(r.Node, in)
		}
	}
	informed()
	var gone []string
	for key := range f.seen {
		if now[key] == 0 {
			gone = append(gone, key)
		}
	}
	f.seen = now
	if len(news)+len(gone) == 0 {
		return nil
	}
	if err := wait.Pause(ctx, f.StartTime); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.report(ctx, news, gone)
}

func (f *fleetGroup) loop(ctx context.Context, first time.Duration) error {
	for next := first; ; next = f.LoopEvery {
		if err := wait.Pause(ctx, next); err != nil {
			return err
		}
		if err := f.crash(ctx); err != nil {
			return err
		}
	}
}

func (f *fleetGroup) crash(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var news []fleetReport
	for key, r := range f.written {
		if !f.Loops(r.Identity) {
			continue
		}
		switch r.Available = false; {
		case f.CrashLooping && (r.State == pod.StateReady || r.State == pod.StateCrashLooping):
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
	return f.report(ctx, news, nil)
}

type fleetReport struct {
	key string
	pod.Reality
}

func (f *fleetSession) intents() string {
	return f.Store.Keys().Intents.Key()
}

// report writes realities, each under its node's lock and with its controller's bell, and deletes those without an
// intent. Unlike a preparer, it assumes that every stop was ordered. Transactions land in any order, so each
// transaction with a drop writes the total count.
func (f *fleetGroup) report(ctx context.Context, news []fleetReport, gone []string) error {
	keys := f.Store.Keys()
	slices.SortFunc(news, func(a, b fleetReport) int { return a.Identity.Compare(b.Identity) })
	counters := map[string]string{} // keys of the counters of drops among the news, by the intent's key
	for i := range news {
		r := &news[i]
		if was := f.written[r.key]; was.Drops(&r.Reality) && r.State != pod.StateStopped {
			counters[r.key] = keys.Drops.Key(r.RCID, r.Node)
			f.drops[counters[r.key]]++
		}
		f.written[r.key] = r.Reality
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
		once(consul.CheckSession(keys.Nodes.Key(r.Node), f.session.Releasing))
		ops = append(ops, consul.Set(keys.Realities.Key(r.Node, r.Identity.String()), value))
		once(consul.Set(keys.Bells.Key(r.RCID), []byte(store.NewID())))
		if counter := counters[r.key]; counter != "" {
			once(consul.Set(keys.Drops.Key(r.RCID), []byte(store.NewID())))
			once(consul.Set(counter, strconv.AppendInt(nil, f.drops[counter], 10)))
		}
	}
	for _, key := range gone {
		if len(ops)+1 > consul.MaxTxnOps {
			flush()
		}
		delete(f.applied, key)
		delete(f.written, key)
		ops = append(ops, consul.Delete(keys.Realities.Key()+strings.TrimPrefix(key, f.intents())))
	}
	flush()
	err := CommitAll(ctx, f.Client, txns)
	if errors.Is(err, consul.ErrRefused) {
		return errors.Join(consul.ErrLost, err)
	}
	return err
}
