package farm

import (
	"context"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

type nobodyPasses struct{ Session }

func (nobodyPasses) Passing(context.Context) ([]string, error)   { return nil, nil }
func (nobodyPasses) SyncedEpoch(context.Context) (string, error) { return "", nil }

// The wait of R1 is measured by this farm's own clock. A wrong time in the epoch's record does not shorten it.
func TestAForeignClockDoesNotShortenTheWait(t *testing.T) {
	t.Parallel()
	log, err := obs.NewLogger(discard{}, "error", "text")
	if err != nil {
		t.Fatal(err)
	}
	f := NewFarm(Config{ID: "f", Store: nobodyPasses{}, Log: log, TTL: 2 * time.Second})
	defer f.queue.ShutDown()
	now := time.Now()
	for name, tt := range map[string]struct {
		stamped, seen time.Duration // ago
		waits         bool
	}{
		"just made":                       {0, 0, true},
		"stamped by a clock ahead":        {-time.Hour, 0, true},
		"stamped by a clock behind":       {5 * time.Second, 0, true},
		"seen long enough":                {5 * time.Second, 4 * time.Second, false},
		"ahead, and seen long enough":     {-time.Hour, 4 * time.Second, false},
		"old beyond doubt, just seen now": {time.Minute, 0, false},
	} {
		schema := store.Schema{Epoch: "n", CreatedAt: now.Add(-tt.stamped)}
		if reason := f.notSynced(t.Context(), schema, now.Add(-tt.seen)); (reason != "") != tt.waits {
			t.Errorf("%s: %q", name, reason)
		}
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
