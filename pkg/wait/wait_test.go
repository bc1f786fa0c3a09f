package wait_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// Each calls look immediately, when the time is over, and when the signal is raised, but not after its context has
// ended.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 13*time.Second)
		defer cancel()
		began, wake := time.Now(), wait.NewSignal()
		var looks []time.Duration
		time.AfterFunc(time.Second, wake.Raise)
		wait.Each(ctx, wake, func() time.Duration {
			looks = append(looks, time.Since(began))
			return 5 * time.Second
		})
		want := []time.Duration{0, time.Second, 6 * time.Second, 11 * time.Second}
		if ended := time.Since(began); !slices.Equal(looks, want) || ended != 13*time.Second {
			t.Errorf("it looked after %s and ended after %s; want %s", looks, ended, want)
		}
	})
}
