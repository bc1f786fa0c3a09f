package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const stormLasts = time.Second

const stormLimit = 60 * time.Second

// stormBench changes every node's record and every pod's reality within a second, and measures what a farm process
// makes of it. The farm's view of the realities is current when every status has the change. Its view of the nodes is
// current when it has placed a pod that only the node that was written last may take.
func stormBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	dev, w, err := b.startWorld(ctx, &sc, manyClients, simnode.Fleet{Name: "n", Size: b.nodes})
	if err != nil {
		return err
	}
	link, err := startProxy(&sc, dev.addr, 0)
	if err != nil {
		return err
	}
	farm, err := b.startFarm(ctx, &sc, w, "farm", "", link.addr)
	if err != nil {
		return err
	}
	if err := farm.events.seen(ctx, syncedLine); err != nil {
		return err
	}
	if _, err := w.create(ctx, "web", b.stormRCs, replicas, nil); err != nil {
		return err
	}
	if err := w.converged(ctx, b.stormRCs); err != nil {
		return err
	}
	probe, err := w.create(ctx, "probe", 1, 1, func(r *rc.RC) { r.NodeSelector = "storm=last" })
	if err != nil {
		return err
	}
	txns, pods, err := w.storm(ctx)
	if err != nil {
		return err
	}
	if err := wait.Pause(ctx, 5*time.Second); err != nil { // the effects of earlier writes end
		return err
	}
	b.report.add("storm/realities", float64(pods), "records", goal{})
	return b.weather(ctx, w, farm, link, probe[0].ID, txns)
}

// storm prepares each node's record with a new label, and each reality with another availability.
func (w *world) storm(ctx context.Context) (txns [][]consul.Op, pods int, err error) {
	nodes, _, err := w.store.Nodes.List(ctx, store.Default)
	if err != nil {
		return nil, 0, err
	}
	var ops []consul.Op
	add := func(more ...consul.Op) {
		if len(ops)+len(more) > consul.MaxTxnOps {
			txns, ops = append(txns, ops), nil
		}
		ops = append(ops, more...)
	}
	realities, _, err := w.store.Realities.List(ctx, store.Default)
	if err != nil {
		return nil, 0, err
	}
	for i, rec := range realities {
		r := rec.Value
		r.Available, r.State, r.Since = false, pod.StateUnhealthy, time.Now().UTC()
		data, err := json.Marshal(r)
		if err != nil {
			return nil, 0, err
		}
		add(consul.Set(w.keys.Realities.Key(r.Node, r.Identity.String()), data),
			consul.Set(w.keys.Bells.Key(r.RCID), []byte(store.NewID())))
		if i < len(nodes) {
			last := i == len(nodes)-1 || i == len(realities)-1
			op, err := w.relabel(nodes[i], last)
			if err != nil {
				return nil, 0, err
			}
			add(op)
		}
	}
	return append(txns, ops), len(realities), nil
}

func (w *world) relabel(rec store.Rec[node.Node], last bool) (consul.Op, error) {
	n := rec.Value
	n.Labels = maps.Clone(n.Labels)
	n.Labels["storm"] = "now"
	if last {
		n.Labels["storm"] = "last"
	}
	data, err := json.Marshal(n)
	return consul.Lock(w.keys.Nodes.Key(n.Name), data, rec.Session), err
}

func (b *bench) weather(ctx context.Context, w *world, farm *process, link *proxy,
	probe string, txns [][]consul.Op,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stormLimit, errors.New("the farm's view does not become current"))
	defer cancel()
	pid := farm.cmd.Process.Pid
	cpuFrom, err := cpu(pid)
	if err != nil {
		return err
	}
	bytesFrom := link.in.Load() + link.out.Load()
	started := time.Now()
	for i, ops := range txns {
		if _, err := w.client.Commit(ctx, ops); err != nil {
			return err
		}
		due := started.Add(stormLasts * time.Duration(i+1) / time.Duration(len(txns)))
		if err := wait.Pause(ctx, time.Until(due)); err != nil {
			return err
		}
	}
	over := time.Now()
	nodesSeen, seen, err := w.current(ctx, probe, over)
	if err != nil {
		return err
	}
	cpuTo, err := cpu(pid)
	if err != nil {
		return err
	}
	b.report.add("storm/took-to-write", over.Sub(started).Seconds(), "s", goal{})
	b.report.add("storm/nodes-current", nodesSeen.Seconds(), "s after", goal{})
	b.report.add("storm/statuses-current", seen.Seconds(), "s after", goal{})
	b.report.add("storm/cpu", (cpuTo - cpuFrom).Seconds(), "s", goal{})
	b.report.add("storm/bytes", float64(link.in.Load()+link.out.Load()-bytesFrom)/mega, "MiB", goal{})
	return nil
}

// current returns how long after the storm the farm had seen the last node, and the last reality.
func (w *world) current(ctx context.Context, probe string, over time.Time) (nodes, realities time.Duration, err error) {
	const pace = 20 * time.Millisecond
	err = every(ctx, pace, func() error {
		recs, _, err := w.store.Pods.List(ctx, store.Default, probe)
		if err == nil && len(recs) == 0 {
			err = errors.New("the node written last is not seen")
		}
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	nodes = time.Since(over)
	err = every(ctx, pace, func() error {
		recs, _, err := w.store.Statuses.List(ctx, store.Default)
		if err != nil {
			return err
		}
		for i := range recs {
			if st := &recs[i].Value; st.RCID != probe && st.Available > 0 {
				return fmt.Errorf("the status of %s is of before the storm", st.RCID)
			}
		}
		return nil
	})
	return nodes, time.Since(over), err
}
