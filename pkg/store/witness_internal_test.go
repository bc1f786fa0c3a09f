package store

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/node"
)

func epochOf(at time.Time) string {
	var id ulid.ULID
	_ = id.SetTime(ulid.Timestamp(at))
	return strings.ToLower(id.String())
}

// The next epoch is valid and above the present one. After the last possible epoch it is made from the time.
func TestTheNextEpochCanAlwaysBeRead(t *testing.T) {
	t.Parallel()
	last := time.UnixMilli(int64(lastEpoch))
	full := strings.ToLower(func() string {
		id := ulid.ULID{6: 255, 7: 255, 8: 255, 9: 255, 10: 255, 11: 255, 12: 255, 13: 255, 14: 255, 15: 255}
		_ = id.SetTime(lastEpoch)
		return id.String()
	}())
	for name, c := range map[string]struct {
		before string
		above  bool
	}{
		"of now":         {NewID(), true},
		"in a year":      {epochOf(time.Now().AddDate(1, 0, 0)), true},
		"in the year":    {epochOf(last.Add(-time.Hour)), true},
		"at the end":     {epochOf(last), true},
		"the very last":  {full, false},
		"beyond the end": {"7" + strings.Repeat("z", 25), false},
		"no epoch":       {"zz", false},
	} {
		s := newSchema(c.before)
		if err := s.Check(); err != nil || (s.Epoch > c.before) != c.above || s.Epoch == c.before {
			t.Errorf("%s: %s after %s, %v", name, s.Epoch, c.before, err)
		}
	}
	for _, bad := range []string{
		"", "zz", strings.ToUpper(NewID()), "7" + strings.Repeat("z", 25),
		"8" + strings.Repeat("z", 25), NewID() + "0",
	} {
		if err := (&Schema{FormatVersion: FormatVersion, Epoch: bad}).Check(); err == nil {
			t.Errorf("the epoch %q is read", bad)
		}
	}
}

// WitnessesOf is right even if the reader's clock is wrong.
func TestWitnesses(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	present, later := epochOf(now.Add(-time.Hour)), epochOf(now.Add(time.Minute))
	says := func(name, epoch string) *node.View {
		return &node.View{Node: node.Node{Name: name, WentBack: epoch}, Alive: true}
	}
	dead, released := says("dead", present), says("released", present)
	dead.Alive, released.Ops.HoldReleased = false, present
	for name, c := range map[string]struct {
		witness string
		nodes   []*node.View
		clock   time.Duration // error of the reader's clock
		known   time.Duration
		want    Witnesses
	}{
		"nobody": {
			"",
			[]*node.View{says("a", ""), dead, released, says("b", epochOf(now.Add(-2*time.Hour)))},
			0, 0,
			Witnesses{},
		},
		"one": {
			"",
			[]*node.View{says("a", present)},
			0, 0,
			Witnesses{Epoch: present, By: []string{"a"}},
		},
		"another one before": {
			"b",
			[]*node.View{says("a", present)},
			0, 0,
			Witnesses{Epoch: present, By: []string{"a"}},
		},
		"the same": {
			"a",
			[]*node.View{says("a", present)},
			0, 20 * time.Minute,
			Witnesses{Epoch: present, By: []string{"a"}, Wait: 40 * time.Minute},
		},
		"the same, by a clock ahead": {
			"a",
			[]*node.View{says("a", present)},
			48 * time.Hour, 20 * time.Minute,
			Witnesses{Epoch: present, By: []string{"a"}, Wait: 40 * time.Minute},
		},
		"the same after an hour": {
			"a",
			[]*node.View{says("a", present)},
			0, time.Hour,
			Witnesses{Epoch: present, By: []string{"a"}},
		},
		"the same and another": {
			"a",
			[]*node.View{says("b", later), says("a", present)},
			0, 0,
			Witnesses{Epoch: later, By: []string{"a", "b"}},
		},
		"by a clock that is behind": {
			"",
			[]*node.View{says("a", present)},
			-30 * 24 * time.Hour, 0,
			Witnesses{Epoch: present, By: []string{"a"}},
		},
		"too far ahead": {
			"",
			[]*node.View{says("a", epochOf(now.Add(25*time.Hour)))},
			0, 0,
			Witnesses{Ignored: map[string]string{"a": ""}},
		},
		"too far, by a clock behind": {
			"",
			[]*node.View{says("a", epochOf(now.Add(24*time.Hour)))},
			-24 * time.Hour, 0,
			Witnesses{Ignored: map[string]string{"a": ""}},
		},
		"the last of all": {
			"",
			[]*node.View{says("a", "7"+strings.Repeat("z", 25)), says("b", present)},
			0,
			0,
			Witnesses{Epoch: present, By: []string{"b"}, Ignored: map[string]string{"a": ""}},
		},
		"none": {
			"",
			[]*node.View{says("a", "zz")},
			0, 0,
			Witnesses{Ignored: map[string]string{"a": ""}},
		},
	} {
		got := WitnessesOf(Schema{Epoch: present, Witness: c.witness}, c.nodes, now.Add(c.clock), c.known)
		if c.want.Ignored == nil {
			c.want.Ignored = map[string]string{}
		}
		for n, why := range got.Ignored {
			if !strings.Contains(why, "allowed: an epoch") {
				t.Errorf("%s: %s: %s", name, n, why)
			}
			got.Ignored[n] = ""
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
