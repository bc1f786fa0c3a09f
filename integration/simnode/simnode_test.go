package simnode_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestMain(m *testing.M) { os.Exit(consultest.Main(m)) }

const soon = 20 * time.Second

type rig struct {
	*simnode.Node
	t      *testing.T
	client *consul.Client
	obeyed chan pod.Intent
}

var web = pod.Identity{RCID: "web", Role: "main", Index: 0}

func newRig(t *testing.T) *rig {
	t.Helper()
	client, prefix := consultest.Client(t)
	keys, err := store.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, client: client, obeyed: make(chan pod.Intent, 10)}
	r.Node = &simnode.Node{
		Record: node.Node{Name: "n1", Capacity: node.Capacity{Slots: 5}}, Client: client,
		Store: store.New(client, keys), TTL: 5 * time.Second,
		React: func(in pod.Intent) pod.Reality { r.obeyed <- in; return simnode.Obey(in) },
	}
	return r
}

func (r *rig) start(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			r.t.Error(err)
		}
	}
}

func (r *rig) tell(revision int64) {
	r.t.Helper()
	r.tellIn("", revision)
}

var someDigest = strings.Repeat("d", 64)

func (r *rig) tellIn(epoch string, revision int64) {
	r.t.Helper()
	in := fmt.Sprintf(
		`{"rc_id":"web","role":"main","index":0,"pod_id":"p","digest":"%s","state":"running","revision":%d,"epoch":%q}`,
		someDigest, revision, epoch)
	if _, err := r.client.Commit(r.t.Context(),
		[]consul.Op{consul.Set(r.Store.Keys().Intents.Key("n1", web.String()), []byte(in))}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) reports(revision int64, state pod.State) {
	r.t.Helper()
	consultest.Eventually(r.t, soon, func() error {
		var got pod.Reality
		pair, err := r.client.Get(r.t.Context(), r.Store.Keys().Realities.Key("n1", web.String()), consul.Consistent)
		if err == nil {
			err = json.Unmarshal(pair.Value, &got)
		}
		if err == nil && (got.Revision != revision || got.State != state ||
			got.Available != (state == pod.StateReady)) {
			err = fmt.Errorf("reality %+v", got)
		}
		return err
	})
}

// Amend reports a change without a new intent, unless the intent was replaced meanwhile.
func TestAmend(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	defer r.start(r.Run)()
	r.tell(5)
	r.reports(5, pod.StateReady)
	if !r.Amend(web, 5, pod.StateUnhealthy, false) {
		t.Error("nothing was amended")
	}
	r.reports(5, pod.StateUnhealthy)
	r.tell(6)
	r.reports(6, pod.StateReady)
	if r.Amend(web, 5, pod.StateFailed, false) {
		t.Error("what became of an earlier intent was amended")
	}
}

// A pod with StopsAfter stops when its preparer has been away for too long. After that, Amend changes nothing. The pod
// starts again at the same revision when the node reads the intent.
func TestPodsThatStopByThemselves(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const after = 200 * time.Millisecond
	stopped := make(chan time.Duration, 10)
	r.StopsAfter = func(digest string) (time.Duration, bool) { return after, digest == someDigest }
	r.OnStopped = func(in pod.Intent, silent time.Time) {
		if in.Revision != 5 {
			t.Errorf("stopped %+v", in)
		}
		stopped <- time.Since(silent)
	}
	defer r.start(r.Supervise)()
	stop := r.start(r.Run)
	r.tell(5)
	r.reports(5, pod.StateReady)
	<-r.obeyed
	if len(stopped) > 0 {
		t.Error("it was stopped while its node was in touch")
	}
	stop()
	if silent := <-stopped; silent < after {
		t.Errorf("it was stopped after %s", silent)
	}
	if len(r.Running()) > 0 || r.Amend(web, 5, pod.StateReady, true) {
		t.Error("it runs after it was stopped")
	}
	stop = r.start(r.Resume)
	if in := <-r.obeyed; in.Revision != 5 || in.State != pod.Running {
		t.Errorf("it obeyed %+v", in)
	}
	r.reports(5, pod.StateReady)
	stop()
	<-stopped
	r.tell(6) // meanwhile the pod gets a newer intent
	defer r.start(r.Resume)()
	if in := <-r.obeyed; in.Revision != 6 {
		t.Errorf("it obeyed %+v", in)
	}
	r.reports(6, pod.StateReady)
	if len(stopped) > 0 {
		t.Error("it was stopped twice")
	}
}

// An intent of another epoch starts no pod. A pod that runs already continues to run.
func TestAnIntentOfAnotherEpochStartsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	schema, err := r.Store.EnsureSchema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.start(r.Run)()
	r.tellIn("another", 5)
	r.reports(5, pod.StatePending)
	if len(r.obeyed) > 0 || len(r.Running()) > 0 {
		t.Error("it was started")
	}
	r.tellIn(schema.Value.Epoch, 6)
	r.reports(6, pod.StateReady)
	r.tellIn("another", 7)
	r.reports(7, pod.StateReady)
}

// A preparer that restarts finds the pods that run. After the death of its machine, it finds no pods.
func TestResumeAndDie(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stop := r.start(r.Run)
	r.tell(5)
	r.reports(5, pod.StateReady)
	<-r.obeyed
	stop()
	r.Amend(web, 5, pod.StateUnhealthy, false) // no preparer reports this change yet
	if len(r.Running()) != 1 {
		t.Error("it has ended with its preparer")
	}
	stop = r.start(r.Resume)
	r.reports(5, pod.StateUnhealthy)
	stop()
	if len(r.obeyed) > 0 {
		t.Error("it was started again with its preparer")
	}
	r.Die()
	if len(r.Running()) != 0 {
		t.Error("it runs on a machine that died")
	}
	defer r.start(r.Run)()
	if in := <-r.obeyed; in.Revision != 5 {
		t.Errorf("it obeyed %+v", in)
	}
	r.reports(5, pod.StateReady)
}
