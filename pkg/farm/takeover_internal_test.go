package farm

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The bell that rang last comes first.
func TestLastRung(t *testing.T) {
	t.Parallel()
	w := emptyCache()
	w.bells[0] = map[string]uint64{"old": 3, "changed": 90}
	w.bells[7] = map[string]uint64{"b": 50, "a": 50}
	if got := w.lastRung(); !slices.Equal(got, []string{"changed", "a", "b", "old"}) {
		t.Errorf("order %v", got)
	}
}

// After a farm has taken over many controllers, their resyncs are spread: some at once, then a part in each sweep. The
// controllers that have waited longest come first. Each controller has had a resync after half of the time between two
// resyncs.
func TestResyncsAreSpread(t *testing.T) {
	t.Parallel()
	log, err := obs.NewLogger(io.Discard, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	f := NewFarm(Config{ID: "f1", Log: log})
	defer f.queue.ShutDown()
	const owned = 5000
	atOnce := 0
	for i := range owned {
		u := unitOver(f.kit, fmt.Sprint(i), store.Fence{})
		c := u.known(u.id)
		f.kit.resyncClaimed(c, 3)
		f.roster.add(u)
		if c.shared.is.resync {
			atOnce++
		}
	}
	if atOnce != resyncsAtOnce {
		t.Errorf("%d of %d are resynced at once, want %d", atOnce, owned, resyncsAtOnce)
	}
	empty := &controller{kit: f.kit}
	if f.kit.resyncClaimed(empty, 0); empty.shared.is.resync || empty.shared.is.lastResync.IsZero() {
		t.Error("a controller without pods is resynced")
	}
	now, sweeps := time.Now(), 0
	for left := owned; left > 0; sweeps++ {
		asked := 0
		f.resyncSome(now)
		for _, c := range f.roster.all() {
			if c.shared.is.resync {
				asked++
				c.shared.is.lastResync, c.shared.is.resync = now, false // as a pass does
			}
		}
		if most := owned / 8; asked == 0 || asked > most {
			t.Fatalf("sweep %d asks for %d of %d, want at most %d", sweeps, asked, owned, most)
		}
		left -= asked
		now = now.Add(f.cfg.SweepEvery)
	}
	if took := time.Duration(sweeps) * f.cfg.SweepEvery; took > f.cfg.ResyncEvery/2+f.cfg.SweepEvery {
		t.Errorf("it takes %s until all were resynced", took)
	}
}
