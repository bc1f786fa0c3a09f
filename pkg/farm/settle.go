package farm

import (
	"context"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/store"
)

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

// clockError is how far the clocks of the farms may be apart.
const clockError = 10 * time.Second

// settle finds out, for each new cluster nonce, when every living node has said what it runs. Until then nothing is added.
func (f *Farm) settle(ctx context.Context) error {
	ticker := time.NewTicker(settleEvery)
	defer ticker.Stop()
	var next time.Time
	var gap time.Duration
	for {
		schema := f.world.schemaRec().Value
		f.mu.Lock()
		if f.nonce.current != schema.Nonce {
			f.nonce.current, f.nonce.since, f.nonce.reason = schema.Nonce, time.Now(), ""
			next, gap = time.Time{}, settleEvery
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
			if reason == "" {
				f.log.WithField("nonce", schema.Nonce).Info("every living node has reported")
				f.enqueueOwned(func(*ReplicationController) bool { return true })
			}
		}
		f.observe()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
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
		return "the records are new: waiting for nodes to report what they run"
	}
	passing, err := f.cfg.Store.Passing(ctx)
	if err != nil {
		return "cannot tell which nodes are alive: " + err.Error()
	}
	views := f.world.nodes()
	var silent []string
	for _, name := range passing {
		if v := views[name]; v == nil || v.Nonce != schema.Nonce {
			silent = append(silent, name)
		}
	}
	if len(silent) > 0 {
		const show = 5
		more := ""
		if len(silent) > show {
			silent, more = silent[:show], " and others"
		}
		return "waiting for nodes to report what they run: " + strings.Join(silent, ", ") + more
	}
	return ""
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
