package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// nodeSync has whether the nodes are synced (R1).
type nodeSync struct {
	mu      sync.Mutex
	epoch   string            // for which all living nodes are synced; empty: none yet
	reason  string            // why the nodes are not synced
	current string            // epoch that the reason is about
	since   time.Time         // when current was first seen, by this farm's clock
	ignored map[string]string // by node: why its report that the store went back is ignored
}

// ignore stores which nodes' reports are ignored and why, and calls log for each new reason.
func (n *nodeSync) ignore(now map[string]string, log func(name, why string)) {
	n.mu.Lock()
	before := n.ignored
	n.ignored = now
	n.mu.Unlock()
	for name, why := range now {
		if before[name] != why {
			log(name, why)
		}
	}
}

const (
	syncEvery    = 250 * time.Millisecond // at first
	syncEveryMax = 4 * time.Second        // later, because waiting for a node that never answers must not load Consul
)

// holdStatusEvery is how often the reason of a hold is written into the statuses again. It changes with each node that
// reports.
const holdStatusEvery = 5 * time.Second

// endGrace is the time that a machine gets to run its supervisor, and to end the processes that it has killed (ADR 23).
const endGrace = 5 * time.Second

// syncNodes finds out, for each new epoch, when all living nodes have reported what they run. Until then no pod is
// added.
func (f *Farm) syncNodes(ctx context.Context) error {
	var next, shownAt time.Time
	var gap time.Duration
	shown := ""       // the reason when the statuses were last updated
	marked := ""      // the epoch for which the store records that the hold has ended
	witnesses := true // some node may be a witness that the store went back in time
	for {
		rec := f.cache.present().schema
		schema := rec.Value
		since, other := f.kit.nodeSync.begin(schema.Epoch)
		if other {
			next, gap, shown = time.Time{}, syncEvery, ""
		}
		done := f.kit.nodeSync.synced(schema.Epoch)
		if now := time.Now(); !done && !now.Before(next) {
			if now.Sub(since) > 10*time.Second {
				gap = min(2*gap, syncEveryMax)
			}
			next = now.Add(gap - syncEvery/2) // half a tick early, because a tick may come early, too
			reason := f.notSynced(ctx, schema, since)
			f.kit.nodeSync.found(schema.Epoch, reason)
			if reason != "" && reason != shown && now.Sub(shownAt) >= holdStatusEvery {
				shown, shownAt = reason, now
				f.enqueueOwned(all) // the looks write the reason into the statuses
			}
			if reason == "" {
				f.log.WithField("epoch", schema.Epoch).Info("every living node has reported")
				f.enqueueOwned(all)
			}
		}
		if done && marked != schema.Epoch && f.markSynced(ctx, rec) {
			marked = schema.Epoch
		}
		if done && witnesses {
			// In one epoch, a hold that has ended does not begin again. But a witness may renew the epoch.
			_, witnesses = f.checkWitnesses(ctx, schema, since)
		}
		f.observe()
		woken, err := wait.PauseUnless(ctx, f.witness, syncEvery)
		if err != nil {
			return err
		}
		witnesses = witnesses || woken
	}
}

// markSynced writes that the hold has ended, so that later farms need not wait for nodes to appear. It reports whether
// that is done or not needed.
func (f *Farm) markSynced(ctx context.Context, schema store.Rec[store.Schema]) bool {
	err := f.cfg.Store.MarkSynced(ctx, schema)
	switch {
	case err == nil, errors.Is(err, store.ErrRefused):
		return true // refused: the epoch has changed, or the token may not write it and later farms wait
	case ctx.Err() == nil:
		f.log.WithError(err).Debug("cannot write that the hold has ended; trying again")
	}
	return false
}

// notSynced returns why no pod may be added yet; "": pods may be added.
func (f *Farm) notSynced(ctx context.Context, schema store.Schema, since time.Time) string {
	if schema.Epoch == "" {
		return "the cluster record is missing"
	}
	if reason, _ := f.checkWitnesses(ctx, schema, since); reason != "" {
		return reason
	}
	// The farm waits by its own clock. The record's time only shows that an epoch is certainly old.
	if wait := 2 * f.cfg.TTL; time.Since(since) < wait && time.Since(schema.CreatedAt) < wait+field.ClockError {
		// If another farm has waited already, only the answers of all nodes are needed.
		if epoch, err := f.cfg.Store.SyncedEpoch(ctx); err != nil || epoch != schema.Epoch {
			return "the records are new: waiting for nodes to report what they run"
		}
	}
	passing, err := f.cfg.Store.Passing(ctx)
	if err != nil {
		return "cannot find out which nodes live: " + err.Error()
	}
	silent, released := f.cache.silent(passing, schema.Epoch)
	if len(silent) > 0 {
		const show = 5
		more := ""
		if len(silent) > show {
			silent, more = silent[:show], " and others"
		}
		return "waiting for nodes to report what they run: " + strings.Join(silent, ", ") + more +
			" (for one that cannot: rcctl farm release-hold NODE)"
	}
	if len(released) > 0 {
		f.log.WithField("nodes", released).Warn("operators let the farms go on without the reports of these nodes")
	}
	return ""
}

// checkWitnesses acts on nodes that report that the store went back in time, and ignores impossible reports. reason is
// why these reports keep pods from being added; "": they do not. still means that some node still reports it.
func (f *Farm) checkWitnesses(ctx context.Context, schema store.Schema, since time.Time) (reason string, still bool) {
	nodes, _ := f.cache.nodesAt()
	w := store.WitnessesOf(schema, slices.Collect(maps.Values(nodes)), time.Now(), time.Since(since))
	f.kit.nodeSync.ignore(w.Ignored, func(name, why string) {
		f.log.WithField(obs.Node, name).WithField("why", why).
			Warn("ignoring a node's report that the store went back in time")
	})
	f.cfg.Metrics.ignored.Set(float64(len(w.Ignored)))
	switch {
	case w.Renews():
		names := field.Few(w.By, 3, ", ")
		f.log.WithField("nodes", names).Warn("nodes saw the store go back in time")
		f.startOver(f.cache.wentBackFrom(ctx, w.Epoch, w.Witness()))
		return "node " + names + " saw the store go back in time", true
	case w.Epoch != "":
		return fmt.Sprintf("node %s alone reports again that the store went back in time: "+
			"waiting for another witness, or for %s (if the node is wrong: rcctl farm release-hold %s)",
			w.By[0], store.SoleWitness, w.By[0]), true
	default:
		return "", len(w.Ignored) > 0
	}
}

// begin returns when this farm first saw the epoch, by its own clock, and whether the epoch is new.
func (n *nodeSync) begin(epoch string) (since time.Time, other bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if other = n.current != epoch; other {
		n.current, n.since, n.reason = epoch, time.Now(), ""
	}
	return n.since, other
}

// found stores why the nodes are not synced; "": they are.
func (n *nodeSync) found(epoch, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reason = reason; reason == "" {
		n.epoch = epoch
	}
}

func (n *nodeSync) synced(epoch string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return epoch != "" && n.epoch == epoch
}

// hold returns why no pod may be added now; "": pods may be added.
func (n *nodeSync) hold(epoch string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case epoch != "" && n.epoch == epoch:
		return ""
	case n.reason != "" && n.current == epoch:
		return n.reason
	default:
		return "the cluster record is new: looking at the nodes"
	}
}
