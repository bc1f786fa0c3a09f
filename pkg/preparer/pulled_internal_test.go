package preparer

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// A report has the time that images of its revision have arrived, in steps, and at most the deadline of pulls.
func TestPulledSeconds(t *testing.T) {
	t.Parallel()
	p := pulled{}.plus(10, time.Second)
	for _, step := range []struct {
		more     time.Duration
		revision int64
		want     int64
	}{{0, 10, 10}, {8 * time.Second, 10, 10}, {2 * time.Second, 10, 20}, {time.Hour, 10, 900}, {time.Second, 11, 10}} {
		p = p.plus(step.revision, step.more)
		if got := p.seconds(step.revision, 15*time.Minute); got != step.want {
			t.Errorf("%+v: %d seconds", step, got)
		}
	}
	if got := p.seconds(10, time.Hour); got != 0 {
		t.Errorf("%d seconds of another revision", got)
	}
	r := observe(observation{pulled: 20, doing: "pulling 34 of 120 MB", activity: activity{state: pod.StateFetching}})
	if r.PullSeconds != 20 || r.Message != "pulling 34 of 120 MB" || r.PullTime() != 20*time.Second {
		t.Errorf("%+v", r)
	}
}
