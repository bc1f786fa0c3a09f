package main

import (
	"context"
	"encoding/json"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// levels are the numbers of transactions in flight. The fastest level counts.
var levels = []int{1, 2, 4, 8, 16}

// plain is one recorded batch as operations of the same number and size that mean nothing to a farm.
type plain struct {
	read  []string // keys that are read before, in one transaction; none: nothing is read
	write []consul.Op
}

// reference writes a farm's batches again as plain transactions, and returns the shortest time of all levels. If reads
// is true, each write follows a transaction that reads the controller's record, bell and status, and the batch's
// reservations: what any compare-and-set of such a batch must read.
func (w *world) reference(ctx context.Context, a *agent, batches []*store.Batch,
	reads bool,
) (best, cpu time.Duration, atOnce int, err error) {
	for _, n := range levels {
		took, used, err := w.replay(ctx, a, batches, reads, n)
		if err != nil {
			return 0, 0, 0, err
		}
		if best == 0 || took < best {
			best, cpu, atOnce = took, used, n
		}
	}
	return best, cpu, atOnce, nil
}

func (w *world) replay(ctx context.Context, a *agent, batches []*store.Batch, reads bool,
	atOnce int,
) (took, cpu time.Duration, err error) {
	var sc scope
	defer sc.close()
	fresh, err := newWorld(ctx, &sc, w.addr)
	if err != nil {
		return 0, 0, err
	}
	schema, err := fresh.store.Schema.Get(ctx, store.Default)
	if err != nil {
		return 0, 0, err
	}
	txns := make([]plain, len(batches))
	for i, b := range batches {
		if txns[i], err = w.plain(fresh.keys, b, schema.Index); err != nil {
			return 0, 0, err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	started, before := time.Now(), spent(a)
	for _, t := range txns {
		group.Go(func() error {
			if reads {
				if _, err := fresh.client.GetMany(ctx, t.read, consul.Default); err != nil {
					return err
				}
			}
			_, err := fresh.client.Commit(ctx, t.write)
			return err
		})
	}
	err = group.Wait()
	return time.Since(started), spent(a) - before, err
}

// plain makes each condition of a batch a condition on one key that never changes.
func (w *world) plain(to *store.Keys, b *store.Batch, index uint64) (plain, error) {
	p := plain{read: []string{w.keys.RCs.Key(b.RCID), w.keys.Bells.Key(b.RCID), w.keys.Statuses.Key(b.RCID)}}
	conditions := 3 // fence and record
	for _, index := range []uint64{b.SchemaIndex, b.BreakerIndex, b.DropsIndex} {
		if index != 0 {
			conditions++
		}
	}
	for range conditions {
		p.write = append(p.write, consul.CheckIndex(to.Schema.Key(), index))
	}
	var failed error
	set := func(key string, value any) {
		data, err := json.Marshal(value)
		if err != nil {
			failed = err
		}
		p.write = append(p.write, consul.Set(key, data))
	}
	for i := range b.Reservations {
		p.read = append(p.read, w.keys.Reservations.Key(b.Reservations[i].Node))
		set(to.Reservations.Key(b.Reservations[i].Node), b.Reservations[i].Value)
	}
	for i := range b.Pods {
		set(to.Pods.Key(b.Pods[i].Identity.String()), b.Pods[i].Placement)
	}
	for i := range b.Intents {
		set(to.Intents.Key(b.Intents[i].Node, b.Intents[i].Identity.String()), b.Intents[i].Intent)
	}
	if b.Audit != nil {
		set(to.Audits.Key(b.Audit.ID), b.Audit)
	}
	if b.Status != nil {
		set(to.Statuses.Key(b.RCID), b.Status)
	}
	return p, failed
}
