package farm

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/store"
)

// Settlement is what the store knows of the end of a hold.
type Settlement interface {
	SettledNonce(ctx context.Context) (string, error)
	MarkSettled(ctx context.Context, schema store.Rec[store.Schema]) error
}

// settling is where the farm stands with the current cluster nonce (R1).
type settling struct {
	nonce   string    // that everything settled for; empty: none yet
	reason  string    // why it is not settled
	current string    // that the reason is about
	since   time.Time // by our own clock: when current was first seen
}

// settleEvery is how often the nodes' answers to a new nonce are looked at, at first and at last: a node that never
// answers must not keep every farm asking for all of them.
const (
	settleEvery    = 250 * time.Millisecond
	settleEveryMax = 4 * time.Second
)

// tellHoldEvery is how often statuses follow the reason why nothing is added: nodes may answer one after the other.
const tellHoldEvery = 5 * time.Second

// clockError is how far the clocks of the farms may be apart.
const clockError = 10 * time.Second

// settle finds out, for each new cluster nonce, when every living node has said what it runs. Until then nothing is added.
func (f *Farm) settle(ctx context.Context) error {
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	var next, toldAt time.Time
	var gap time.Duration
	told := ""   // why the controllers were last looked at
	marked := "" // the nonce of which the store says that the hold has ended
	for {
		rec := f.world.schemaRec()
		schema := rec.Value
		f.mu.Lock()
		if f.nonce.current != schema.Nonce {
			f.nonce.current, f.nonce.since, f.nonce.reason = schema.Nonce, time.Now(), ""
			next, gap, told = time.Time{}, settleEvery, ""
		}
		done, since := schema.Nonce != "" && f.nonce.nonce == schema.Nonce, f.nonce.since
		f.mu.Unlock()
		if now := time.Now(); !done && !now.Before(next) {
			if now.Sub(since) > 10*time.Second {
				gap = min(2*gap, settleEveryMax)
			}
			next = now.Add(gap - settleEvery/2) // the tick that is due, not the one after
			reason := f.unsettled(ctx, schema, since)
			f.mu.Lock()
			f.nonce.reason = reason
			if reason == "" {
				f.nonce.nonce = schema.Nonce
			}
			f.mu.Unlock()
			if reason != "" && reason != told && now.Sub(toldAt) >= tellHoldEvery {
				told, toldAt = reason, now
				f.enqueueOwned(func(*ReplicationController) bool { return true }) // their statuses say why they wait
			}
			if reason == "" {
				f.log.WithField("nonce", schema.Nonce).Info("every living node has reported")
				f.enqueueOwned(func(*ReplicationController) bool { return true })
			}
		}
		if done && marked != schema.Nonce && f.markSettled(ctx, rec) {
			marked = schema.Nonce
		}
		f.observe()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// markSettled tells successors that they need not wait for nodes to appear, and reports whether there is nothing left to tell.
func (f *Farm) markSettled(ctx context.Context, schema store.Rec[store.Schema]) bool {
	err := f.cfg.Store.MarkSettled(ctx, schema)
	switch {
	case err == nil, errors.Is(err, store.ErrRefused):
		return true // refused: the nonce is another one by now, or the token may not, and then successors wait
	case ctx.Err() == nil:
		f.log.WithError(err).Debug("cannot tell that the hold has ended; trying again")
	}
	return false
}

// unsettled says what is missing before pods may be added in a world with this nonce, "" when nothing is.
func (f *Farm) unsettled(ctx context.Context, schema store.Schema, since time.Time) string {
	if schema.Nonce == "" {
		return "the cluster record is missing"
	}
	for _, v := range f.world.nodes() {
		if v.Alive && v.Regressed >= schema.Nonce {
			f.startOver(f.world.regressedFrom(ctx, v.Regressed))
			return "node " + v.Name + " saw the store go back in time"
		}
	}
	// Our own clock counts. The other one only tells a nonce that is old beyond doubt.
	if wait := 2 * f.cfg.TTL; time.Since(since) < wait && time.Since(schema.CreatedAt) < wait+clockError {
		// Unless some farm has waited already. That spares the time only, not the answer of a single node.
		if settled, err := f.cfg.Store.SettledNonce(ctx); err != nil || settled != schema.Nonce {
			return "the records are new: waiting for nodes to report what they run"
		}
	}
	passing, err := f.cfg.Store.Passing(ctx)
	if err != nil {
		return "cannot tell which nodes are alive: " + err.Error()
	}
	silent, without := f.world.silent(passing, schema.Nonce)
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

// silent returns which of the passing nodes have not said what they run, and apart those of them whose word operators do not
// want to wait for under this nonce.
func (w *world) silent(passing []string, nonce string) (silent, released []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range passing {
		switch v := w.views[name]; {
		case v != nil && v.Spoke(nonce):
		case w.ops[name].HoldReleased == nonce:
			released = append(released, name)
		default:
			silent = append(silent, name)
		}
	}
	return silent, released
}

// hold returns why nothing may be added now, "" when it may.
func (f *Farm) hold(nonce string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case nonce != "" && f.nonce.nonce == nonce:
		return ""
	case f.nonce.reason != "" && f.nonce.current == nonce:
		return f.nonce.reason
	default:
		return "the cluster record is new: looking at the nodes"
	}
}
