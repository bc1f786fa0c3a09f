package store

import (
	"net/http"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// A rollout that fails while a service is read, whichever request it comes before, leaves no service that has neither
// the rollout nor its outcome: the failed revision would count as the one in effect.
func TestARolloutThatEndsWhileItsServiceIsRead(t *testing.T) {
	for before := 1; ; before++ {
		farm, fence := begun(t)
		line := consultest.StartProxy(t, consultest.Shared(t).Addr)
		client, err := consul.New(consul.Config{Address: line.Addr})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		requests := 0
		line.Set(func(*http.Request) consultest.Verdict {
			if requests++; requests == before {
				committed(t, farm, ended(next(t, farm, fence), rollout.Failed, "it is sick"))
			}
			return consultest.Forward
		})
		svc, err := New(client, farm.Keys()).Deployments.Service(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		if svc.Rollout == nil && svc.Entry(2).Outcome != rollout.Failed {
			t.Errorf("it ended before request %d: neither the rollout nor its outcome is there: %+v", before, svc.History)
		}
		if requests < before {
			if before < 5 {
				t.Errorf("only %d requests", requests)
			}
			return
		}
	}
}
