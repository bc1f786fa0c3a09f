package preparer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

func TestExpiredTombstones(t *testing.T) {
	t.Parallel()
	cfg := Config{KeepTombstones: 30 * 24 * time.Hour, MaxTombstones: 3}
	now := time.Now()
	tombs := func(days ...float64) []*entry {
		var all []*entry
		for i, d := range days {
			at := now.Add(-time.Duration(d * 24 * float64(time.Hour)))
			all = append(all, &entry{id: ident(i), rec: Record{StoppedAt: &at}})
		}
		return all
	}
	for _, c := range []struct {
		days []float64
		want string
	}{
		{[]float64{1, 29, 2}, "[]"},
		{[]float64{1, 30, 31}, "[2 1]"},
		{[]float64{5, 6, 7, 8, 9}, "[4 3]"},            // two too many: the oldest
		{[]float64{0.1, 0.2, 0.3, 0.4, 0.5, 2}, "[5]"}, // too many, but none goes within a day
		{[]float64{40, 0.2, 0.3, 0.4, 0.5, 0.6, 3}, "[0 6]"},
	} {
		var got []int
		for _, e := range expired(&cfg, now, now, tombs(c.days...)) {
			got = append(got, e.id.Index)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%v days old: %v go, want %s", c.days, got, c.want)
		}
	}
}

// A stop in the year in which clocks begin says nothing of when it was.
func TestStoppedFor(t *testing.T) {
	t.Parallel()
	now := time.Now()
	began, cfg := now.Add(-time.Hour), Config{KeepTombstones: 2 * time.Hour}
	for at, want := range map[time.Time]time.Duration{
		time.Unix(100, 0):        time.Hour,
		{}:                       time.Hour,
		now.Add(-time.Minute):    time.Minute,
		now.Add(-10 * time.Hour): 10 * time.Hour,
	} {
		rec := Record{StoppedAt: &at}
		if got := stoppedFor(&rec, began, now); got != want {
			t.Errorf("stopped at %s: for %s, want %s", at, got, want)
		}
		if gone := len(expired(&cfg, began, now, []*entry{{rec: rec}})) > 0; gone != (want > 2*time.Hour) {
			t.Errorf("stopped at %s: gone is %t", at, gone)
		}
	}
	// The clock was set while the preparer ran: what it stopped itself it knows better.
	rec := Record{}.buried(now)
	if got := stoppedFor(&rec, began, now.Add(time.Second)); got != time.Second || !strings.Contains(rec.StoppedAt.String(), " m=") {
		t.Errorf("the stop of this preparer's own: %s, %v; want it with its monotonic reading", got, rec.StoppedAt)
	}
}

// Earlier versions stay in the record, so many as are kept, the newest first.
func TestRecordKeepsVersions(t *testing.T) {
	t.Parallel()
	var rec Record
	for n := range 5 {
		rec = rec.installed(&install.Installed{Revision: int64(n + 1)}, "web")
		var got []int64
		for _, in := range rec.versions() {
			got = append(got, in.Revision)
		}
		want := []int64{5, 4, 3, 2, 1}[4-n:][:min(n+1, keepVersions)]
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("versions %v, want %v", got, want)
		}
	}
	if buried := rec.buried(time.Now()); len(buried.versions()) > 0 {
		t.Errorf("a tombstone has versions: %+v", buried)
	}
}

// The ports of the version before the last count as the pod's until the last has been available; those of earlier ones never: something else may listen there.
func TestWhichVersionsMayRun(t *testing.T) {
	t.Parallel()
	var rec Record
	if n := len(rec.live()); n != 0 {
		t.Errorf("%d of nothing", n)
	}
	for revision, want := range []int{1, 2, 2} {
		rec = rec.installed(&install.Installed{Digest: strings.Repeat("d", 64), Revision: int64(revision + 1)}, "web")
		if live := rec.live(); len(live) != want || live[0].Revision != int64(revision+1) {
			t.Errorf("after %d: %v, want %d", revision+1, live, want)
		}
	}
	rec.Ready = "web." + install.Short(rec.Installed.Digest) + ".2:1"
	if n := len(rec.live()); n != 2 {
		t.Errorf("the former version was available: %d", n)
	}
	rec.Ready = "web." + install.Short(rec.Installed.Digest) + ".3:1"
	if live := rec.live(); len(live) != 1 || live[0].Revision != 3 {
		t.Errorf("it has been available: %v", live)
	}
}
