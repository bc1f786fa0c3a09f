package simnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/preparer/push"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Told makes simulated nodes such that farms tell of their intents, in place of a standing query (ADR 26). Each has the API of a real one, with a
// certificate and a token of its own, and what a real one does with a request.
type Told struct {
	Credentials *cluster.Credentials
	Dir         string        // for what nodes have heard, each in a directory of its own
	Addr        string        // of their APIs: host, and port 0
	Every       time.Duration // between two readings that nobody asks for, give or take half; a minute
	// Open carries out what opens an address, in another network if need be; nil: here.
	Open func(open func() error) error
	// OnTaken is told what became of each request; nil: nobody is.
	OnTaken func(error)
}

// door is where one node takes requests, and what they make it read.
type door struct {
	told  *Told
	inbox *push.Inbox
	api   *nodeapi.Server

	mu    sync.Mutex
	epoch string                  // of the cluster, under which the intents are read
	end   context.CancelCauseFunc // ends the reading; nil: nothing is read yet
}

// open opens the door of a node. With anew it has heard of nothing.
func (t *Told) open(ctx context.Context, name string, st *store.Store, anew bool) (*door, error) {
	files, err := t.Credentials.Of(name)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(t.Dir, name)
	if anew {
		err = os.RemoveAll(dir)
	}
	if err := errors.Join(err, os.MkdirAll(dir, 0o700)); err != nil {
		return nil, err
	}
	every := t.Every
	if every == 0 {
		every = time.Minute
	}
	d := &door{told: t}
	if d.inbox, err = push.New(push.Config{Dir: dir, Pull: true, Every: every, Epoch: st.Epoch}); err != nil {
		return nil, err
	}
	open := func() (err error) {
		d.api, err = nodeapi.New(ctx, nodeapi.Config{Node: name, Addr: t.Addr, Dir: dir, TokenFile: files.Token, CertFile: files.Cert, KeyFile: files.Key, Log: obs.Discard()})
		return err
	}
	if t.Open != nil {
		return d, t.Open(open)
	}
	return d, open()
}

// say puts into a node's record that farms tell it, and where.
func (d *door) say(record *node.Node) {
	if d != nil {
		record.Intents, record.API = node.IntentsPush, d.api.URL()
	}
}

var errNewEpoch = errors.New("the cluster has a new epoch")

// renew has the intents read under an epoch, anew if it is another one.
func (d *door) renew(epoch string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.end != nil && d.epoch != epoch {
		d.end(errNewEpoch)
	}
	d.epoch = epoch
}

// follow has the intents read, anew under each epoch, for as long as one session lasts.
func (d *door) follow(ctx context.Context, read func(ctx context.Context) error) error {
	d.inbox.Open(d.renew)
	defer d.inbox.Close()
	for {
		reading, end := context.WithCancelCause(ctx)
		d.mu.Lock()
		d.end = end
		epoch := d.epoch
		d.mu.Unlock()
		d.inbox.Begin(epoch)
		err := read(reading)
		again := errors.Is(context.Cause(reading), errNewEpoch)
		end(nil)
		if !again || ctx.Err() != nil || errors.Is(err, store.ErrWentBack) {
			return err
		}
	}
}

// besides runs something while requests are taken at doors.
func besides(ctx context.Context, doors []*door, run func(context.Context) error) error {
	parts, ctx := errgroup.WithContext(ctx)
	for _, d := range doors {
		parts.Go(func() error { return d.api.Run(ctx, d) })
	}
	parts.Go(func() error { return run(ctx) })
	return parts.Wait()
}

// Scale implements nodeapi.Pods.
func (d *door) Scale(ctx context.Context, r scale.Request) (scale.Response, error) {
	answer := scale.Response{Service: r.Service}
	if r.Epoch == nil {
		return answer, fmt.Errorf("%w: a simulated node has no local services", scale.ErrUnavailable)
	}
	err := d.inbox.Take(ctx, r)
	if d.told.OnTaken != nil {
		d.told.OnTaken(err)
	}
	answer.Success = err == nil
	return answer, err
}

// LogFiles implements nodeapi.Pods.
func (d *door) LogFiles(pod.Identity) (map[string]string, bool) { return nil, false }

// Command implements nodeapi.Pods.
func (d *door) Command(id pod.Identity, _ string, _ []string) (runtime.Command, error) {
	return nil, fmt.Errorf("pod %s is simulated", id)
}
