package consul

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/consul/api"
)

// groups records the groups of a gatherer. Each ends when letGo has a value or is closed.
type groups struct {
	letGo chan struct{}
	mu    sync.Mutex
	seen  [][]int
	ended []error // of the groups' contexts
}

func (g *groups) run(ctx context.Context, group []int) {
	select {
	case <-g.letGo:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen, g.ended = append(g.seen, group), append(g.ended, ctx.Err())
}

func TestGatherer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got := &groups{letGo: make(chan struct{})}
		g := &gatherer[int]{most: 1, run: got.run, joins: func(group []int, _ int) bool { return len(group) < 3 }}
		var all sync.WaitGroup
		call := func(ctx context.Context, item int) {
			all.Go(func() {
				if err := g.do(ctx, item); err != nil {
					t.Errorf("call %d: %v", item, err)
				}
			})
			synctest.Wait() // the call is under way or waits
		}
		for item := range 6 {
			call(t.Context(), item)
		}
		if len(got.seen) != 0 || g.length() != 5 {
			t.Fatalf("%v done, %d waiting; want one under way and the rest waiting", got.seen, g.length())
		}
		close(got.letGo)
		all.Wait()
		want := [][]int{{0}, {1, 2, 3}, {4, 5}}
		if !slices.EqualFunc(got.seen, want, slices.Equal) {
			t.Errorf("groups %v, want %v", got.seen, want)
		}
		call(t.Context(), 7)
		all.Wait()
		if last := got.seen[len(got.seen)-1]; !slices.Equal(last, []int{7}) {
			t.Errorf("after the rush: %v", last)
		}
	})
}

// A caller that gives up does not harm the others. Its waiting item is removed. A group continues for its other
// callers, even without the caller that carries it out, and is cancelled when all have given up.
func TestGathererCallersThatLeave(t *testing.T) {
	t.Parallel()
	left := errors.New("left")
	synctest.Test(t, func(t *testing.T) {
		got := &groups{letGo: make(chan struct{})}
		g := &gatherer[int]{most: 1, run: got.run, joins: func([]int, int) bool { return true }}
		var all sync.WaitGroup
		errs := make([]error, 5)
		leave := make([]context.CancelCauseFunc, 5)
		for item := range 5 {
			var ctx context.Context
			ctx, leave[item] = context.WithCancelCause(t.Context())
			all.Go(func() { errs[item] = g.do(ctx, item) })
			synctest.Wait()
		}
		leave[4](left) // the item of caller 4 waits
		synctest.Wait()
		leave[0](left) // caller 0 is alone in its group, which ends; then 1, 2 and 3 are a group
		synctest.Wait()
		leave[1](left) // this caller carries the group out
		leave[2](left)
		synctest.Wait()
		if len(got.seen) != 1 || got.ended[0] == nil {
			t.Fatalf("groups %v ended with %v; want the first, given up", got.seen, got.ended)
		}
		leave[3](left)
		all.Wait()
		if len(got.seen) != 2 || !slices.Equal(got.seen[1], []int{1, 2, 3}) || got.ended[1] == nil {
			t.Errorf("groups %v ended with %v", got.seen, got.ended)
		}
		for item, err := range errs {
			if want := item == 4; errors.Is(err, left) != want {
				t.Errorf("call %d: %v", item, err)
			}
		}
	})
}

// A read that needs many requests does not use all requests at once, so other reads need not wait for its end.
func TestALargeReadLeavesRequestsToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &Merger{}
		held, underWay, most := make(chan struct{}), 0, 0
		m.reads = gatherer[*readPart]{
			most: mergedReads, joins: m.joinsReads,
			run: func(_ context.Context, parts []*readPart) {
				m.mu.Lock()
				underWay++
				most = max(most, underWay)
				m.mu.Unlock()
				if len(parts) != 1 || parts[0].ops[0].Key() != "small" {
					<-held
				}
				m.mu.Lock()
				underWay--
				m.mu.Unlock()
				for _, p := range parts {
					p.got = &answer{byKey: map[string]*api.KVPair{}}
					for i := range p.ops {
						p.got.byKey[p.ops[i].Key()] = &api.KVPair{}
					}
				}
			},
		}
		keys := make([]string, 50*MaxTxnOps)
		for i := range keys {
			keys[i] = fmt.Sprintf("large/%d", i)
		}
		large := make(chan error, 1)
		go func() {
			_, _, err := m.Read(t.Context(), Reading{Keys: keys}, Default)
			large <- err
		}()
		synctest.Wait()
		if _, _, err := m.Read(t.Context(), Reading{Keys: []string{"small"}}, Default); err != nil {
			t.Error(err)
		}
		if most > mergedReads {
			t.Errorf("%d requests at once", most)
		}
		close(held)
		if err := <-large; err != nil {
			t.Error(err)
		}
	})
}
