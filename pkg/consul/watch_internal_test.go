package consul

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"
)

func TestHistoryWentBack(t *testing.T) {
	t.Parallel()
	type keys = map[string]uint64
	for name, tc := range map[string]struct {
		first  bool // the watch has seen nothing before
		before keys
		index  uint64
		after  keys
		next   uint64
		away   time.Duration // since the last look
		want   bool
	}{
		"nothing seen yet": {first: true, after: keys{"a": 5}, next: 5},
		"nothing happened": {before: keys{"a": 5}, index: 5, after: keys{"a": 5}, next: 5},
		"a key changed":    {before: keys{"a": 5}, index: 5, after: keys{"a": 9}, next: 9},
		"a key was added": {
			before: keys{"a": 5}, index: 5,
			after: keys{"a": 5, "b": 9}, next: 9,
		},
		"a key was deleted": {
			before: keys{"a": 5, "b": 7}, index: 7,
			after: keys{"a": 5}, next: 9,
		},
		"the last key was deleted":             {before: keys{"a": 5}, index: 5, after: keys{}, next: 9},
		"deleted and made again":               {before: keys{"a": 5}, index: 8, after: keys{"a": 9}, next: 9},
		"an empty prefix moved with the store": {before: keys{}, index: 5, after: keys{}, next: 50},
		"a tombstone was reaped":               {before: keys{"a": 5}, index: 8, after: keys{"a": 5}, next: 5},
		"a tombstone was reaped, then a write": {
			before: keys{"a": 5}, index: 5,
			after: keys{"a": 5, "b": 9}, next: 9,
		},
		"reaped and empty: index of the store": {before: keys{}, index: 8, after: keys{}, next: 70},
		"an unchanged world at an older index": {before: keys{}, index: 70, after: keys{}, next: 40},
		"an older version of a key": {
			before: keys{"a": 9}, index: 9, after: keys{"a": 5},
			next: 5, want: true,
		},
		"an older version, then a write elsewhere": {
			before: keys{"a": 9, "b": 7}, index: 9,
			after: keys{"a": 5, "b": 12}, next: 12, want: true,
		},
		"a deleted key is back": {
			before: keys{"a": 5}, index: 8, after: keys{"a": 5, "b": 7},
			next: 7, want: true,
		},
		"a deleted key is back, then a write": {
			before: keys{"a": 5}, index: 8, after: keys{"a": 12, "b": 7},
			next: 12, want: true,
		},
		"a key that is not made yet": {
			before: keys{"a": 5, "b": 9}, index: 9, after: keys{"a": 5},
			next: 5, want: true,
		},
		"the only key is not made yet": {
			before: keys{"a": 9}, index: 9, after: keys{},
			next: 6, want: true,
		},
		"one for another": {
			before: keys{"a": 5, "b": 9}, index: 9,
			after: keys{"a": 5, "c": 8}, next: 8, want: true,
		},
		"another history at the same index": {
			before: keys{"a": 5}, index: 5, after: keys{"a": 5, "b": 5},
			next: 5, want: true,
		},
		"a newer version below an index that is past": {
			before: keys{"a": 5}, index: 9, after: keys{"a": 7},
			next: 7, want: true,
		},

		"not made yet, just before a tombstone ends": {
			before: keys{"a": 5, "b": 9}, index: 9, after: keys{"a": 5},
			next: 5, away: deletionsKept - 1, want: true,
		},
		"deleted, and Consul has forgotten that": {
			before: keys{"a": 5, "b": 9}, index: 9, after: keys{"a": 5},
			next: 5, away: deletionsKept,
		},
		"all deleted, and Consul has forgotten that": {
			before: keys{"a": 9}, index: 9, after: keys{}, next: 6,
			away: 20 * time.Minute,
		},
		"an older version, after a long time": {
			before: keys{"a": 9}, index: 9, after: keys{"a": 5}, next: 5,
			away: time.Hour, want: true,
		},
		"a deleted key is back, after a long time": {
			before: keys{"a": 5}, index: 8, after: keys{"a": 12, "b": 7},
			next: 12, away: time.Hour, want: true,
		},
	} {
		var h history
		if !tc.first {
			h = h.remember(pairsOf(tc.before), tc.index)
			h.at = time.Hour
		}
		if got := h.wentBack(pairsOf(tc.after), tc.next, h.at+tc.away); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// Consul counts how often sessions have taken a lock. If another session has it, and the count is not higher, either
// the store went back in time, or the lock was made again since the last poll. Only a watcher that alone makes the lock
// can tell.
func TestHistoryOfLocksWentBack(t *testing.T) {
	t.Parallel()
	lock := func(session string, count, index uint64, made uint64) []Pair {
		return []Pair{{Key: "a", Session: session, LockIndex: count, ModifyIndex: index, CreateIndex: made}}
	}
	for name, tc := range map[string]struct {
		before  [][]Pair
		after   []Pair
		deleted bool // the lock is deleted with its session, so its count begins again
		want    bool // without WatchOptions.Own
		own     bool // with WatchOptions.Own
	}{
		"written again":     {before: [][]Pair{lock("s1", 3, 5, 2)}, after: lock("s1", 3, 9, 2)},
		"taken by the next": {before: [][]Pair{lock("s1", 3, 5, 2)}, after: lock("s2", 4, 9, 2)},
		"free":              {before: [][]Pair{lock("s1", 3, 5, 2)}, after: lock("", 3, 9, 2)},
		"free, taken by the next": {
			before: [][]Pair{lock("s1", 3, 5, 2), lock("", 3, 7, 2)},
			after:  lock("s2", 4, 9, 2),
		},
		"taken in an older store": {
			before: [][]Pair{lock("s1", 3, 5, 2)}, after: lock("s2", 3, 9, 2),
			want: true, own: true,
		},
		"free, taken in an older": {
			before: [][]Pair{lock("s1", 3, 5, 2), lock("", 3, 7, 2)},
			after:  lock("s2", 2, 9, 2), want: true, own: true,
		},
		"made anew and taken": {
			before: [][]Pair{lock("s1", 3, 5, 2)},
			after:  lock("s2", 1, 9, 9), own: true,
		},
		"made anew by its session": {before: [][]Pair{lock("s1", 3, 5, 2)}, after: lock("s1", 1, 9, 9)},
		"vanished, taken anew": {
			before: [][]Pair{lock("s1", 3, 5, 2), nil},
			after:  lock("s2", 1, 9, 8), own: true,
		},
		"made anew, then taken": {
			before: [][]Pair{lock("s1", 3, 5, 2), lock("", 1, 6, 6)},
			after:  lock("s3", 2, 9, 6),
		},
		"made anew, then in an older": {
			before: [][]Pair{lock("s1", 3, 5, 2), lock("s2", 2, 6, 6)},
			after:  lock("s3", 2, 9, 6), want: true, own: true,
		},
		"made at a time that is past": {
			before: [][]Pair{lock("s1", 3, 5, 2)}, after: lock("s2", 1, 9, 4),
			want: true, own: true,
		},
		"deleted with its session": {
			before: [][]Pair{lock("s1", 3, 5, 2), nil},
			after:  lock("s2", 1, 9, 9), deleted: true,
		},
		"a lock that was not there": {before: [][]Pair{nil}, after: lock("s1", 1, 9, 9)},
		"removed, and others have taken": {before: [][]Pair{
			lock("s1", 3, 5, 2), nil, lock("s2", 1, 6, 6),
			lock("s3", 2, 7, 6),
		}, after: lock("s4", 3, 9, 6)},
	} {
		for _, own := range []bool{false, true} {
			h := history{released: !tc.deleted, own: own}
			for i, pairs := range tc.before {
				h = h.remember(pairs, uint64(5+i))
			}
			want := tc.want
			if own {
				want = tc.own
			}
			if got := h.wentBack(tc.after, 9, 0); got != want {
				t.Errorf("%s, own %v: %v, want %v", name, own, got, want)
			}
		}
	}
}

// The next watch knows what the last one has seen, until the store went back in time. So a restore is reported only
// once.
func TestThePastOutlivesAWatch(t *testing.T) {
	t.Parallel()
	var p past
	_, early := p.recall("a")
	p.keep("a", history{}.remember(nil, 7), early)
	if h, _ := p.recall("a"); !h.valid || h.index != 7 {
		t.Errorf("kept %+v", h)
	}
	p.keep("a", history{}, early) // from a watch that has seen nothing
	if h, _ := p.recall("a"); !h.valid {
		t.Error("a watch that saw nothing took the past away")
	}
	late := p.forget()
	p.keep("a", history{}.remember(nil, 8), early)
	if h, _ := p.recall("a"); h.valid {
		t.Errorf("what was seen before the store went back is known still: %+v", h)
	}
	p.keep("a", history{}.remember(nil, 9), late)
	if h, _ := p.recall("a"); h.index != 9 {
		t.Errorf("kept %+v", h)
	}
}

func pairsOf(keys map[string]uint64) []Pair {
	var pairs []Pair
	for key, index := range keys {
		pairs = append(pairs, Pair{Key: key, ModifyIndex: index})
	}
	return pairs
}

func TestGapGrowsWhileChangesComeWithoutEnd(t *testing.T) {
	t.Parallel()
	var g gapper
	for i, want := range []time.Duration{20, 40, 80, 100, 100} {
		if got := g.next(); got != want*time.Millisecond {
			t.Errorf("gap %d is %s, want %dms", i, got, want)
		}
	}
	g.last = g.last.Add(-2 * quietAfter)
	if got := g.next(); got != minGap {
		t.Errorf("after a quiet time the gap is %s", got)
	}
}

func TestRetryPauseIsBounded(t *testing.T) {
	t.Parallel()
	for fails := 1; fails < 100; fails++ {
		if got := retryPause(fails); got < 50*time.Millisecond || got > 7500*time.Millisecond {
			t.Errorf("after %d failures: %s", fails, got)
		}
	}
}

// A watch that did not poll for longer than Consul remembers deletions does not take a deletion for a store that went
// back. The time of a poll is when its query was sent, because the process may have been suspended before it read the
// answer.
func TestADeletionThatConsulHasForgotten(t *testing.T) {
	t.Parallel()
	both, one := pairsOf(map[string]uint64{"a": 5, "b": 9}), pairsOf(map[string]uint64{"a": 5})
	type answer struct {
		after time.Duration // time since the last answer was read
		pairs []Pair
		index uint64
		err   error
	}
	gone := answer{pairs: one, index: 5}
	later := func(after time.Duration, a answer) answer { a.after = after; return a }
	failed := answer{after: time.Minute, err: errors.New("no answer")}
	for name, tc := range map[string]struct {
		answers []answer
		want    bool
	}{
		"restored soon": {
			[]answer{{pairs: both, index: 9}, later(time.Minute, gone), gone},
			true,
		},
		// ^ The longest time that a query stays open.
		"restored after a quiet time": {[]answer{
			{pairs: both, index: 9},
			{319 * time.Second, both, 9, nil},
			later(319*time.Second, gone), gone,
		}, true},
		"deleted while the process stood": {
			[]answer{{pairs: both, index: 9}, later(17*time.Minute, gone), gone},
			false,
		},
		"deleted while Consul was away": {append(
			append([]answer{{pairs: both, index: 9}}, slices.Repeat([]answer{failed}, 14)...), gone, gone), false},
		"restored while Consul was away": {append(
			append([]answer{{pairs: both, index: 9}}, slices.Repeat([]answer{failed}, 13)...), gone, gone), true},
		"stood with an old answer to be read": {[]answer{
			{pairs: both, index: 9},
			{17 * time.Minute, both, 9, nil},
			gone, gone,
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				now, left := time.Hour, tc.answers
				c := &Client{timeout: time.Second}
				c.past.clock = func() time.Duration { return now }
				enough := errors.New("enough")
				var wentBack bool
				err := c.watch(t.Context(), "it", WatchOptions{}, func(*api.QueryOptions) ([]Pair, uint64, error) {
					a := left[0]
					left = left[1:]
					now += a.after
					return a.pairs, a.index, a.err
				}, func(s Snapshot) error {
					if wentBack = s.WentBack; len(s.Pairs) == 1 {
						return enough
					}
					return nil
				})
				if !errors.Is(err, enough) || wentBack != tc.want {
					t.Errorf("%v; a return in time: %t, want %t", err, wentBack, tc.want)
				}
			})
		})
	}
}
