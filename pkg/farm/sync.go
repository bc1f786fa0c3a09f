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

// nodeSync is where the farm stands with the current cluster epoch (R1).
type nodeSync struct {
	mu      sync.Mutex
	epoch   string            // that all living nodes are synced for; empty: none yet
	reason  string            // why the nodes are not synced
	current string            // that the reason is about
	since   time.Time         // by our own clock: when current was first seen
	ignored map[string]string // what was told of nodes whose word is ignored
}

// ignore notes whose word is ignored and why, and has tell called for each that was not told.
func (s *nodeSync) ignore(now map[string]string, tell func(name, why string)) {
	s.mu.Lock()
	before := s.ignored
	s.ignored = now
	s.mu.Unlock()
	for name, why := range now {
		if before[name] != why {
			tell(name, why)
		}
	}
}

// syncEvery is how often the nodes' answers to a new epoch are looked at, at first and at last: a node that never
// answers must not keep every farm asking for all of them.
const (
	syncEvery    = 250 * time.Millisecond
	syncEveryMax = 4 * time.Second
)

// tellHoldEvery is how often statuses follow the reason why nothing is added: nodes may answer one after the other.
const tellHoldEvery = 5 * time.Second

// endGrace is what a machine needs to schedule its supervisor, and its kernel to end what was killed (ADR 23).
const endGrace = 5 * time.Second

// syncNodes finds out, for each new cluster epoch, when every living node has said what it runs. Until then nothing is added.
func (f *Farm) syncNodes(ctx context.Context) error {
	var next, toldAt time.Time
	var gap time.Duration
	told := ""   // why the controllers were last looked at
	marked := "" // the epoch of which the store says that the hold has ended
	heed := true // somebody saw the store go back, or may count as a witness later
	for {
		rec := f.cache.now().schema
		schema := rec.Value
		since, other := f.kit.nodeSync.begin(schema.Epoch)
		if other {
			next, gap, told = time.Time{}, syncEvery, ""
		}
		done := f.kit.nodeSync.synced(schema.Epoch)
		if now := time.Now(); !done && !now.Before(next) {
			if now.Sub(since) > 10*time.Second {
				gap = min(2*gap, syncEveryMax)
			}
			next = now.Add(gap - syncEvery/2) // the tick that is due, not the one after
			reason := f.notSynced(ctx, schema, since)
			f.kit.nodeSync.found(schema.Epoch, reason)
			if reason != "" && reason != told && now.Sub(toldAt) >= tellHoldEvery {
				told, toldAt = reason, now
				f.enqueueOwned(func(*controller) bool { return true }) // their statuses say why they wait
			}
			if reason == "" {
				f.log.WithField("epoch", schema.Epoch).Info("every living node has reported")
				f.enqueueOwned(func(*controller) bool { return true })
			}
		}
		if done && marked != schema.Epoch && f.markSynced(ctx, rec) {
			marked = schema.Epoch
		}
		if done && heed {
			_, heed = f.heed(ctx, schema, since) // nothing is held up again: only the epoch may be renewed
		}
		f.observe()
		woken, err := wait.PauseUnless(ctx, f.witness, syncEvery)
		if err != nil {
			return err
		}
		heed = heed || woken
	}
}

// markSynced tells successors that they need not wait for nodes to appear, and reports whether there is nothing left to tell.
func (f *Farm) markSynced(ctx context.Context, schema store.Rec[store.Schema]) bool {
	err := f.cfg.Store.MarkSynced(ctx, schema)
	switch {
	case err == nil, errors.Is(err, store.ErrRefused):
		return true // refused: the epoch is another one by now, or the token may not, and then successors wait
	case ctx.Err() == nil:
		f.log.WithError(err).Debug("cannot tell that the hold has ended; trying again")
	}
	return false
}

// notSynced says what is missing before pods may be added in a world with this epoch, "" when nothing is.
func (f *Farm) notSynced(ctx context.Context, schema store.Schema, since time.Time) string {
	if schema.Epoch == "" {
		return "the cluster record is missing"
	}
	if reason, _ := f.heed(ctx, schema, since); reason != "" {
		return reason
	}
	// Our own clock counts. The other one only tells an epoch that is old beyond doubt.
	if wait := 2 * f.cfg.TTL; time.Since(since) < wait && time.Since(schema.CreatedAt) < wait+field.ClockError {
		// Unless some farm has waited already. That spares the time only, not the answer of a single node.
		if epoch, err := f.cfg.Store.SyncedEpoch(ctx); err != nil || epoch != schema.Epoch {
			return "the records are new: waiting for nodes to report what they run"
		}
	}
	passing, err := f.cfg.Store.Passing(ctx)
	if err != nil {
		return "cannot tell which nodes are alive: " + err.Error()
	}
	silent, without := f.cache.silent(passing, schema.Epoch)
	if len(silent) > 0 {
		const show = 5
		more := ""
		if len(silent) > show {
			silent, more = silent[:show], " and others"
		}
		return "waiting for nodes to report what they run: " + strings.Join(silent, ", ") + more +
			" (for one that cannot: rcctl farm release-hold NODE)"
	}
	if len(without) > 0 {
		f.log.WithField("nodes", without).Warn("operators let the farms go on without knowing what these nodes run")
	}
	return ""
}

// heed acts on what nodes say that saw the store go back in time. It returns why nothing may be added because of that,
// and whether some node says so still. A node's word that cannot be so is told, and changes nothing.
func (f *Farm) heed(ctx context.Context, schema store.Schema, since time.Time) (reason string, still bool) {
	nodes, _ := f.cache.nodesAt()
	w := store.WitnessesOf(schema, slices.Collect(maps.Values(nodes)), time.Now(), time.Since(since))
	f.kit.nodeSync.ignore(w.Ignored, func(name, why string) {
		f.log.WithField(obs.Node, name).WithField("why", why).Warn("what a node says of a store that went back in time is ignored")
	})
	f.cfg.Metrics.ignored.Set(float64(len(w.Ignored)))
	switch {
	case w.Renews():
		names := field.Few(w.By, 3, ", ")
		f.log.WithField("nodes", names).Warn("nodes saw the store go back in time")
		f.startOver(f.cache.wentBackFrom(ctx, w.Epoch, w.Witness()))
		return "node " + names + " saw the store go back in time", true
	case w.Epoch != "":
		return fmt.Sprintf("node %s alone says again that the store went back in time: waiting for another witness, or for %s (for one that is wrong: rcctl farm release-hold %s)",
			w.By[0], store.SoleWitness, w.By[0]), true
	default:
		return "", len(w.Ignored) > 0
	}
}

// silent returns which of the passing nodes have not said what they run, and apart those of them whose word operators do not
// want to wait for under this epoch.
func (w *cache) silent(passing []string, epoch string) (silent, released []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range passing {
		switch v := w.views[name]; {
		case v != nil && v.Spoke(epoch):
		case w.ops[name].HoldReleased == epoch:
			released = append(released, name)
		default:
			silent = append(silent, name)
		}
	}
	return silent, released
}

// begin is for a look at the nodes. It returns since when the epoch is known, by our own clock, and whether it is another one than before.
func (s *nodeSync) begin(epoch string) (since time.Time, other bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other = s.current != epoch; other {
		s.current, s.since, s.reason = epoch, time.Now(), ""
	}
	return s.since, other
}

// found notes why the nodes are not synced for an epoch; empty: they are.
func (s *nodeSync) found(epoch, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason = reason; reason == "" {
		s.epoch = epoch
	}
}

// synced reports whether all living nodes are synced for an epoch: they have said what they run.
func (s *nodeSync) synced(epoch string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return epoch != "" && s.epoch == epoch
}

// hold returns why nothing may be added now, "" when it may.
func (s *nodeSync) hold(epoch string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case epoch != "" && s.epoch == epoch:
		return ""
	case s.reason != "" && s.current == epoch:
		return s.reason
	default:
		return "the cluster record is new: looking at the nodes"
	}
}
