package store

import (
	"errors"
	"net/http"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// beforeRequests returns a store that calls then before each request to Consul.
func beforeRequests(t *testing.T, farm *FarmSession, then func(*http.Request)) *Store {
	t.Helper()
	line := consultest.StartProxy(t, consultest.Shared(t).Addr)
	client, err := consul.New(consul.Config{Address: line.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	line.Set(func(r *http.Request) consultest.Verdict {
		then(r)
		return consultest.Forward
	})
	return New(client, farm.Keys())
}

// If the owner changes the rollout first, AskRollout tries again, at most askTries times.
func TestAskingWhileTheOwnerWrites(t *testing.T) {
	for faster, want := range map[int]error{0: nil, 1: nil, askTries - 1: nil, askTries: ErrConflict} {
		farm, fence := begun(t)
		asked := 0
		watched := beforeRequests(t, farm, func(r *http.Request) {
			if r.Method == http.MethodPut {
				if asked++; asked <= faster {
					committed(t, farm, moved(next(t, farm, fence)))
				}
			}
		})
		err := watched.Operator.AskRollout(t.Context(), RolloutAsk{
			Service: "web", Request: rollout.Request{Verb: rollout.PauseVerb, By: "op"}, Audit: NewAudit("op",
				"pause", "", nil),
		})
		is := unitNow(t, farm).Rollout.Value
		if !errors.Is(err, want) || is.Stage != faster || (is.Request != nil) != (want == nil) {
			t.Errorf("the owner was faster %d times: %v, stage %d, request %v", faster, err, is.Stage, is.Request)
		}
	}
}

// If a rollout fails while Service reads, the result has the rollout or its outcome. Without both, the failed revision
// would seem to be in effect. The test lets the rollout fail before each of the requests.
func TestARolloutThatEndsWhileItsServiceIsRead(t *testing.T) {
	for before := 1; ; before++ {
		farm, fence := begun(t)
		requests := 0
		watched := beforeRequests(t, farm, func(*http.Request) {
			if requests++; requests == before {
				committed(t, farm, ended(next(t, farm, fence), rollout.Failed, "it is sick"))
			}
		})
		svc, err := watched.Deployments.Service(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		if svc.Rollout == nil && svc.Entry(2).Outcome != rollout.Failed {
			t.Errorf("it ended before request %d: neither the rollout nor its outcome is there: %+v",
				before, svc.History)
		}
		if requests < before {
			if before < 5 {
				t.Errorf("only %d requests", requests)
			}
			return
		}
	}
}

// If other knobs are deployed while a rollout ends, the history keeps its outcome. Without it, the failed revision
// would seem to be in effect.
func TestKnobsAreDeployedWhileTheRolloutEnds(t *testing.T) {
	for ends, want := range map[bool]error{false: nil, true: ErrConflict} {
		farm, fence := begun(t)
		st := &Deployments{farm.db}
		svc, err := st.Service(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		committed(t, farm, moved(next(t, farm, fence)))
		if ends {
			committed(t, farm, ended(next(t, farm, fence), rollout.Failed, "it is sick"))
		}
		draft := &record.Draft{Service: "web", Seen: svc, Deployed: svc.Deployed, Entry: *svc.Entry(2)}
		err = st.DeployDraft(t.Context(), draft, NewAudit("op", "deploy", svc.Deployed.RC, nil))
		if !errors.Is(err, want) {
			t.Errorf("it ends: %v: %v, want %v", ends, err, want)
		}
		now, err := st.Service(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		if is := now.Entry(2).Outcome; (is == rollout.Failed) != ends {
			t.Errorf("it ends: %v: the history has the outcome %q", ends, is)
		}
	}
}
