package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

const recoveryLimit = 4

// noRecovery: the farm does not replace lost pods at all.
const noRecovery = 45 * time.Second

const replicas = 10

// recoveryBench loses a fifth of the nodes at once: their preparers use one Consul agent, which is killed. The time
// begins when Consul reports the failure, because that moment depends on gossip. It ends when every lost pod has an
// intent on another node.
func recoveryBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	dev, err := b.startDev(ctx, &sc, manyClients)
	if err != nil {
		return err
	}
	doomed, err := b.startClient(ctx, &sc, dev)
	if err != nil {
		return err
	}
	w, err := newWorld(ctx, &sc, dev.addr)
	if err != nil {
		return err
	}
	if _, err := w.fleet(ctx, &sc, simnode.Fleet{Name: "stay", Size: b.nodes - b.lostNodes}); err != nil {
		return err
	}
	lost := simnode.Fleet{Name: "lost", Size: b.lostNodes, TTL: time.Minute} // the agent's health alone decides
	if lost.Client, lost.Store, err = w.connect(&sc, doomed.addr); err != nil {
		return err
	}
	gone, err := w.fleet(ctx, &sc, lost)
	if err != nil {
		return err
	}
	farm, err := b.startFarm(ctx, &sc, w, "farm", "", dev.addr)
	if err != nil {
		return err
	}
	if err := farm.events.seen(ctx, syncedLine); err != nil {
		return err
	}
	at := field.Duration(0)
	if _, err := w.create(ctx, "web", b.lostRCs, replicas, func(r *rc.RC) { r.NodeLoss.After = &at }); err != nil {
		return err
	}
	if err := w.converged(ctx, b.lostRCs); err != nil {
		return err
	}
	pods, err := w.intentsOn(ctx, "lost-")
	if err != nil {
		return err
	}
	b.report.add("recovery/lost-pods", float64(pods), "pods", goal{})
	doomed.kill()
	took, err := w.recovered(ctx, gone, b.lostRCs*replicas)
	if err != nil {
		return fmt.Errorf("node_loss.after: 0s: %w", err)
	}
	b.report.add("recovery/all-replaced", took.Seconds(), "s", atMost(recoveryLimit))
	return nil
}

func (w *world) intentsOn(ctx context.Context, prefix string) (int, error) {
	keys, err := w.client.Keys(ctx, strings.TrimSuffix(w.keys.Intents.Below(prefix), "/"))
	n := 0
	for _, key := range keys {
		if !strings.HasSuffix(key, "/") {
			n++
		}
	}
	return n, err
}

// recovered returns the time from the loss of the nodes' preparers until every pod has an intent elsewhere. It reads
// names, because reading all placements would keep half a core busy.
func (w *world) recovered(ctx context.Context, gone *simnode.Fleet, pods int) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, noRecovery, errors.New("the pods were not replaced"))
	defer cancel()
	const pace = 5 * time.Millisecond
	last := w.keys.Nodes.Key(gone.NodeName(gone.Size - 1))
	err := every(ctx, pace, func() error {
		pair, err := w.client.Get(ctx, last, consul.Default)
		if err == nil && pair.Session != "" {
			err = errors.New("the loss is not visible in Consul yet")
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	visible := time.Now()
	const rare = 100 * time.Millisecond // listing ten thousand names is work, too
	err = every(ctx, rare, func() error {
		n, err := w.intentsOn(ctx, "stay-")
		if err == nil && n < pods {
			err = fmt.Errorf("%d of %d pods have an intent on a node that stayed", n, pods)
		}
		return err
	})
	return time.Since(visible), err
}
