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

// Whoever complains never waits. Calls come one at a time, in order; where one does not return only so many errors
// wait, and whatever a call does, others follow. None begins after the end.
func TestComplaints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []string
		under := 0
		goOn := make(chan struct{})
		c := newComplaints(func(err error) {
			if under++; under > 1 {
				t.Error("two calls at a time")
			}
			defer func() { under-- }()
			switch told = append(told, err.Error()); err.Error() {
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
		if want := []string{"first", "panics", "exits", "after"}; !slices.Equal(told, want) {
			t.Fatalf("it was told %q, want %q", told, want)
		}
		told = nil
		c.add(errors.New("blocks"))
		synctest.Wait()
		for i := range 2 * maxComplaints {
			c.add(fmt.Errorf("late %d", i))
		}
		close(goOn)
		synctest.Wait()
		if len(told) != 1+maxComplaints || told[1] != "late 0" || told[maxComplaints] != fmt.Sprintf("late %d", maxComplaints-1) {
			t.Errorf("it was told %q", told)
		}
		told, goOn = nil, make(chan struct{})
		c.add(errors.New("blocks"))
		synctest.Wait()
		c.add(errors.New("waits"))
		c.end()
		c.add(errors.New("too late"))
		close(goOn)
		synctest.Wait()
		if !slices.Equal(told, []string{"blocks"}) {
			t.Errorf("after the end it was told %q", told)
		}
		(*complaints)(nil).add(errors.New("nobody is told"))
	})
}
