package farm_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A farm that takes over also counts the pods of controllers that it has claimed and not looked at yet. It admits no
// stops while it has more to claim. So the deletion of 12 of 42 pods is no mass stop, no matter which controller the
// farm looks at first.
func TestTakingOverDoesNotTripTheBreaker(t *testing.T) {
	t.Parallel()
	for _, claimed := range []bool{true, false} {
		t.Run(fmt.Sprintf("claimed %t", claimed), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for i := range 5 {
				c.node(fmt.Sprintf("n%d", i), nil, nil)
			}
			stop := c.farm("f1")
			c.apply("big", testManifest("big", 0), replicas(30))
			c.apply("small", testManifest("small", 0), replicas(12))
			c.converged("big", 30)
			c.converged("small", 12)
			stop()
			c.apply("small", testManifest("small", 0), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })

			ended := make(chan struct{})
			var once sync.Once
			end := func() { once.Do(func() { close(ended) }) }
			defer end()
			var looks atomic.Int32
			faults := &faulty{}
			faults.readHead = func(rcID string) error {
				switch {
				case rcID == "small" && looks.Add(1) > 3 && !claimed:
					end() // the farm has admitted no stop so far, else the breaker would have tripped
				case rcID == "big" && claimed:
					<-ended
				}
				return nil
			}
			if !claimed {
				faults.claim = func(rcID string) {
					if rcID == "big" {
						<-ended
					}
				}
			}
			c.faultyFarm("f2", faults, nil)
			consultest.Eventually(t, soon, func() error {
				if b, err := c.store.Breaker.Get(t.Context(), store.Consistent); err != nil || b.Value.Tripped {
					t.Fatalf("breaker %+v, %v", b.Value, err)
				}
				_, err := c.store.RCs.Get(t.Context(), store.Consistent, "small")
				if errors.Is(err, store.ErrNotFound) {
					return nil
				}
				return errors.Join(errors.New("small is there"), err)
			})
			end()
			c.converged("big", 30)
		})
	}
}

// The audit records have the reason why the breaker tripped, because operators are asked to look there.
func TestATrippedBreakerIsInTheAudit(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 3 {
		c.node(fmt.Sprintf("n%d", i), nil, nil)
	}
	c.farm("f1")
	c.apply("web", testManifest("web", 0), replicas(20))
	c.converged("web", 20)
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { now := time.Now(); r.DeletedAt = &now })
	consultest.Eventually(t, soon, func() error {
		if b, err := c.store.Breaker.Get(t.Context(), store.Consistent); err != nil || !b.Value.Tripped {
			return errors.Join(errors.New("the breaker has not tripped"), err)
		}
		return nil
	})
	breaker, err := c.store.Breaker.Get(t.Context(), store.Consistent)
	if err != nil {
		t.Fatal(err)
	}
	records, _, err := c.store.ListAudit(t.Context(), store.AuditFilter{RCID: "web"})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, a := range records {
		if a.What == "trip" && a.Who == "f1" {
			lines = append(lines, a.Changes...)
		}
	}
	if want := "breaker: not tripped -> tripped (" + breaker.Value.Reason + ")"; len(lines) != 1 || lines[0] != want {
		t.Errorf("audited %q, want %q", lines, want)
	}
}
