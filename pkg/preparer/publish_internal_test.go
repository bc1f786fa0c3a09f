package preparer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// refusingTenure answers every write with an error.
type refusingTenure struct {
	Tenure
	err   error
	tried map[int]bool // by index
}

func (r *refusingTenure) WriteReality(_ context.Context, reality pod.Reality, _ uint64) (uint64, error) {
	r.tried[reality.Index] = true
	return 0, fmt.Errorf("write: %w", r.err)
}

// What Consul refuses about one record keeps no other from being written; a lost session, or none that answers, does.
func TestPassGoesOnAfterOneRecord(t *testing.T) {
	t.Parallel()
	const pods = 5
	for _, c := range []struct {
		err  error
		want int
	}{
		{store.ErrTooLarge, pods},
		{store.ErrRefused, pods},
		{errors.Join(store.ErrLost, store.ErrRefused), 1},
		{errors.New("connection refused"), 1},
	} {
		tenure := &refusingTenure{err: c.err, tried: map[int]bool{}}
		p := &Preparer{pods: map[pod.Identity]*entry{}}
		for i := range pods {
			p.pods[ident(i)] = &entry{id: ident(i), reality: &pod.Reality{Identity: ident(i)}}
		}
		pub := &publisher{serving: &serving{Preparer: p, tenure: tenure}, stored: map[pod.Identity]store.Rec[pod.Reality]{}}
		if err := pub.pass(t.Context()); !errors.Is(err, c.err) || len(tenure.tried) != c.want {
			t.Errorf("%v: %d records were tried, want %d; the pass says %v", c.err, len(tenure.tried), c.want, err)
		}
	}
}

// Whatever an error repeats, a message fits a record and is text.
func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	for _, text := range []string{strings.Repeat("ä", 900_000), "a" + strings.Repeat("ä", 900_000), strings.Repeat("x\xff", 900_000), "short \xff"} {
		o := observation{rec: sampleRecord(0), activity: activity{pod.StateFailed, text}, standing: standing{verdict: Orphan}}
		got := observe(o).Message
		if len(got) > maxMessage || !utf8.ValidString(got) || len(text) > maxMessage && !strings.HasSuffix(got, "...") || !strings.HasPrefix(got, "orphaned") {
			t.Errorf("%d bytes of text: a message of %d, %.100q", len(text), len(got), got)
		}
	}
	if got := shorten("as it is", 8); got != "as it is" {
		t.Errorf("%q", got)
	}
	if got := shorten("as it isn't", 8); got != "as it..." {
		t.Errorf("%q", got)
	}
}
