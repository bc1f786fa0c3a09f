package preparer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

func TestTombstonesExpireOldestFirst(t *testing.T) {
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
		{[]float64{5, 6, 7, 8, 9}, "[4 3]"},            // two too many: the two oldest go
		{[]float64{0.1, 0.2, 0.3, 0.4, 0.5, 2}, "[5]"}, // too many, but none younger than a day goes
		{[]float64{40, 0.2, 0.3, 0.4, 0.5, 0.6, 3}, "[0 6]"},
	} {
		var got []int
		for _, e := range expired(
			&cfg, instant{now, proc.Moment{Boot: "this", Up: 400 * 24 * time.Hour}}, tombs(c.days...),
		) {
			got = append(got, e.id.Index)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%v days old: %v expire, want %s", c.days, got, c.want)
		}
	}
}

// If a pod was stopped after the machine's start, the age of the stop comes from the clock that counts since that
// start. An impossible time is never used.
func TestAgeOfAStopDespiteWrongClocks(t *testing.T) {
	t.Parallel()
	now := instant{time.Now(), proc.Moment{Boot: "this", Up: 40 * time.Hour}}
	at := func(ago time.Duration) time.Time { return now.wall.Add(-ago) }
	here, before := &proc.Moment{Boot: "this", Up: 10 * time.Hour}, &proc.Moment{Boot: "before", Up: 10 * time.Hour}
	month, year := 30*24*time.Hour, 365*24*time.Hour
	for name, c := range map[string]struct {
		at     time.Time
		moment *proc.Moment
		up     time.Duration // since the machine's start
		want   time.Duration
		wrong  bool
	}{
		"since this start": {at(30 * time.Hour), here, 40 * time.Hour, 30 * time.Hour, false},
		"the clock was an hour ahead when it stopped": {
			at(29 * time.Hour), here, 40 * time.Hour, 30 * time.Hour, false,
		},
		"the clock was a year ahead when it stopped": {at(-year), here, 40 * time.Hour, 30 * time.Hour, false},
		"the clock is a year ahead, or was behind":   {at(year), here, 40 * time.Hour, 30 * time.Hour, false},
		"the clock had not been set": {
			time.Unix(100, 0), here, 40 * time.Hour, 30 * time.Hour, false,
		},
		"before this start": {
			at(50 * time.Hour), before, 40 * time.Hour, 50 * time.Hour, false,
		},
		"a record of an earlier release": {
			at(50 * time.Hour), nil, 40 * time.Hour, 50 * time.Hour, false,
		},
		"before this start, ahead":         {at(-year), before, 40 * time.Hour, 0, true},
		"before this start, an hour ahead": {at(-time.Hour), before, 40 * time.Hour, 0, true},
		"before this start, as far as clocks differ": {
			at(-time.Second), before, 40 * time.Hour, -time.Second, false,
		},
		"before this start, the clock had not been set":     {time.Unix(100, 0), before, 40 * time.Hour, 0, true},
		"of an earlier release, the clock had not been set": {time.Time{}, nil, 40 * time.Hour, 0, true},
		"before this start, and the clock is not set yet":   {at(month), before, time.Minute, time.Minute, false},
		"of an earlier release, the clock is not set yet":   {at(month), nil, time.Minute, time.Minute, false},
	} {
		rec, now := Record{StoppedAt: &c.at, StoppedMoment: c.moment}, now
		now.up.Up = c.up
		if got, wrong := stoppedFor(&rec, now), wrongStop(&rec, now); got != c.want || wrong != c.wrong {
			t.Errorf("%s: for %s, wrong is %t; want %s, %t", name, got, wrong, c.want, c.wrong)
		}
	}
	if first := (Record{}).buried(now); first.buried(thisInstant()).StoppedAt != first.StoppedAt ||
		*first.StoppedMoment != now.up {
		t.Errorf("buried twice: %+v", first)
	}
	if without := (Record{}).buried(instant{wall: now.wall}); without.StoppedMoment != nil {
		t.Errorf("without the machine's clock: %+v", without)
	}
}

// If the time in a tombstone is in the future or long ago, it is replaced once, also on the disk. The tombstone's age
// counts from then on.
func TestImpossibleTimesInTombstonesAreReplacedOnce(t *testing.T) {
	t.Parallel()
	disk, err := NewDisk(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	now := instant{time.Now(), proc.Moment{Boot: "this", Up: 40 * time.Hour}}
	c := &collector{&kit{
		cfg:     Config{State: disk, KeepTombstones: 24 * time.Hour, MaxTombstones: 9},
		limiter: loop.NewLogLimiter(quiet(t)), pods: newPods(quiet(t)),
	}}
	before := &proc.Moment{Boot: "before", Up: time.Hour}
	for i, at := range []time.Time{now.wall.Add(time.Hour), time.Unix(100, 0), now.wall.Add(-time.Hour)} {
		rec := sampleRecord(i).buried(now)
		rec.StoppedAt, rec.StoppedMoment = &at, before
		c.pods.add(ident(i), rec)
	}
	for range 2 { // at the second call no time is wrong
		if err := c.redate(now); err != nil {
			t.Fatal(err)
		}
		recs, bad, err := disk.Load()
		if err != nil || len(bad) > 0 || len(recs) != 2 {
			t.Fatalf("%d records on the disk, want those of the two wrong clocks; %v, %v", len(recs), bad, err)
		}
		for _, rec := range recs {
			if known := c.pods.all[rec.Intent.Identity].rec; !rec.StoppedAt.Equal(now.wall) ||
				*rec.StoppedMoment != now.up || !known.StoppedAt.Equal(*rec.StoppedAt) {
				t.Fatalf("%+v, and in memory %+v; want the time of the first look", rec, known)
			}
		}
	}
	later := instant{now.wall.Add(-365 * 24 * time.Hour), now.up} // the clock is set once more
	later.up.Up += 24 * time.Hour
	var tombs []*entry
	for i := range 2 {
		tombs = append(tombs, c.pods.all[ident(i)])
	}
	if gone := expired(&c.cfg, later, tombs); len(gone) != 2 {
		t.Errorf("%d of 2 tombstones have expired", len(gone))
	}
}

func TestRecordKeepsTheNewestVersions(t *testing.T) {
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
	if buried := rec.buried(thisInstant()); len(buried.versions()) > 0 {
		t.Errorf("a tombstone has versions: %+v", buried)
	}
}

// Until the newest version has been available, the one before may still run. Older ones do not, so other programs may
// use their ports.
func TestThePreviousVersionMayRunUntilTheNewOneWasAvailable(t *testing.T) {
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
