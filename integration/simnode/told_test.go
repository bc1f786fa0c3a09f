package simnode_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// push pushes to a node as a farm does that has written an intent at this index.
func (r *rig) push(creds *cluster.Credentials, name string, index uint64) (status int) {
	r.t.Helper()
	rec, err := r.Store.Node(r.t.Context(), name)
	if err != nil || rec.Value.Intents != node.IntentsPush {
		r.t.Fatalf("%+v, %v", rec, err)
	}
	schema, err := r.Store.EnsureSchema(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	client, err := creds.Client(name, rec.Value.API)
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	ask := scale.New("web", 1)
	ask.Epoch, ask.Revision = &scale.Epoch{
		Cluster: schema.Value.Epoch, RCID: web.RCID,
		Term: scale.Term(schema.Value.Epoch, 1),
	}, int64(index)
	_, err = client.Scale(r.t.Context(), ask)
	if refused, is := errors.AsType[*nodeapi.RefusedError](err); is {
		return refused.Status
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return http.StatusOK
}

func (r *rig) written() uint64 {
	r.t.Helper()
	pair, err := r.client.Get(r.t.Context(), r.Store.Keys().Intents.Key("n1", web.String()), consul.Consistent)
	if err != nil {
		r.t.Fatal(err)
	}
	return pair.ModifyIndex
}

// A pushed node reads its intents and carries them out. It refuses a push that is older than the last one, also after a
// restart of its program. After its machine has died, it accepts such a push.
func TestAPushedNodeReadsItsIntents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := t.TempDir()
	creds, err := cluster.NewCredentials(filepath.Join(dir, "credentials"))
	if err != nil {
		t.Fatal(err)
	}
	var taken atomic.Int64
	r.Told = &simnode.Told{
		Credentials: creds, Dir: dir, Addr: "127.0.0.1:0",
		Every: time.Hour, OnTaken: func(err error) {
			if err == nil {
				taken.Add(1)
			}
		},
	}
	r.tell(5)
	stop := r.start(r.Run)
	r.reports(5, pod.StateReady) // it reads when it starts
	r.tell(6)
	first := r.written()
	if status := r.push(creds, "n1", first); status != http.StatusOK || taken.Load() != 1 {
		t.Errorf("answered with %d, %d were taken", status, taken.Load())
	}
	r.reports(6, pod.StateReady)
	r.tell(7)
	if status := r.push(creds, "n1", r.written()); status != http.StatusOK {
		t.Errorf("answered with %d", status)
	}
	stop()
	stop = r.start(r.Resume)
	again := func(want int) {
		t.Helper()
		consultest.Eventually(t, soon, func() error { // until the record has the node's new address
			if rec, err := r.Store.Node(t.Context(), "n1"); err != nil || rec.Session == "" {
				return errors.Join(err, errors.New("nobody holds the record"))
			}
			status := r.push(creds, "n1", first)
			if status == http.StatusServiceUnavailable {
				return errors.New("the node is still starting")
			}
			if status != want {
				t.Errorf("an older request is answered with %d, want %d", status, want)
			}
			return nil
		})
	}
	again(http.StatusConflict)
	stop()
	r.Die()
	defer r.start(r.Run)()
	again(http.StatusOK)
	if _, err := os.Stat(filepath.Join(dir, "n1")); err != nil {
		t.Error(err)
	}
}

// Farms push to each node of a fleet separately.
func TestEachNodeOfAFleetIsPushed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := t.TempDir()
	creds, err := cluster.NewCredentials(filepath.Join(dir, "credentials"))
	if err != nil {
		t.Fatal(err)
	}
	ready, heard := make(chan struct{}, 1), make(chan string, 10)
	f := &simnode.Fleet{
		Name: "n", Size: 3, Groups: 3, Client: r.client, Store: r.Store, TTL: 15 * time.Second,
		Told:     &simnode.Told{Credentials: creds, Dir: dir, Addr: "127.0.0.1:0", Every: time.Hour},
		OnReady:  func() { ready <- struct{}{} },
		OnIntent: func(node string, _ pod.Intent) { heard <- node },
	}
	defer r.start(f.Run)()
	<-ready
	name := f.NodeName(1)
	written, err := r.client.Commit(t.Context(), []consul.Op{consul.Set(r.Store.Keys().Intents.Key(name, web.String()),
		[]byte(`{"rc_id":"web","role":"main","index":0,"pod_id":"p","digest":"d","state":"running","revision":1}`))})
	if err != nil {
		t.Fatal(err)
	}
	for _, index := range written {
		consultest.Eventually(t, soon, func() error { // the node's first reading may be under way
			if status := r.push(creds, name, index); status != http.StatusOK {
				return errors.New(http.StatusText(status))
			}
			return nil
		})
	}
	if got := <-heard; got != name {
		t.Errorf("%s was told", got)
	}
}
