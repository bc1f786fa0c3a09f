package farm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/rcfarm/rcfarm/pkg/obs"
)

// A look that fails does not wait for the program's function. The calls come one after the other, in order. If a call
// does not return, a bounded number of errors waits. The next calls follow even if a call panics or ends its goroutine.
// No call begins after the end.
func TestFailedLooksAreDelivered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		under := 0
		goOn := make(chan struct{})
		c := newFailureQueue(func(err error) {
			if under++; under > 1 {
				t.Error("two concurrent calls")
			}
			defer func() { under-- }()
			switch calls = append(calls, err.Error()); err.Error() {
			case "blocks":
				<-goOn
			case "panics":
				panic(err)
			case "exits":
				runtime.Goexit()
			}
		}, obs.Discard())
		for _, text := range []string{"first", "panics", "exits", "after"} {
			c.add(errors.New(text))
		}
		synctest.Wait()
		if want := []string{"first", "panics", "exits", "after"}; !slices.Equal(calls, want) {
			t.Fatalf("calls %q, want %q", calls, want)
		}
		calls = nil
		c.add(errors.New("blocks"))
		synctest.Wait()
		for i := range 2 * maxWaitingFailures {
			c.add(fmt.Errorf("late %d", i))
		}
		close(goOn)
		synctest.Wait()
		if len(calls) != 1+maxWaitingFailures || calls[1] != "late 0" ||
			calls[maxWaitingFailures] != fmt.Sprintf("late %d", maxWaitingFailures-1) {
			t.Errorf("calls %q", calls)
		}
		calls, goOn = nil, make(chan struct{})
		c.add(errors.New("blocks"))
		synctest.Wait()
		c.add(errors.New("waits"))
		c.end()
		c.add(errors.New("too late"))
		close(goOn)
		synctest.Wait()
		if !slices.Equal(calls, []string{"blocks"}) {
			t.Errorf("calls after the end: %q", calls)
		}
		(*failureQueue)(nil).add(errors.New("there is no function"))
	})
}
