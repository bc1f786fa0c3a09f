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

// Told configures simulated nodes to which farms push (ADR 26). Each node has the API of a real node, with its own
// certificate and token.
type Told struct {
	Credentials *cluster.Credentials
	Dir         string        // each node remembers there, in its own directory, which requests it took
	Addr        string        // listen address of their APIs: a host, and port 0
	Every       time.Duration // mean time between two readings without a request, give or take half; 0: a minute
	// Open calls its argument, which opens a listening address, perhaps in another network. nil: it is called directly.
	Open func(open func() error) error
	// OnTaken is called with the result of each request; nil: no call.
	OnTaken func(error)
}

type door struct {
	told  *Told
	inbox *push.Inbox
	api   *nodeapi.Server

	mu    sync.Mutex
	epoch string                  // the cluster's epoch; the intents are read under it
	end   context.CancelCauseFunc // ends the current reading; nil: there is none yet
}

// If anew is true, the node forgets which requests it took.
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
		d.api, err = nodeapi.New(ctx, nodeapi.Config{
			Node: name, Addr: t.Addr, Dir: dir, TokenFile: files.Token,
			CertFile: files.Cert, KeyFile: files.Key, Log: obs.Discard(),
		})
		return err
	}
	if t.Open != nil {
		return d, t.Open(open)
	}
	return d, open()
}

func (d *door) say(record *node.Node) {
	if d != nil {
		record.Intents, record.API = node.IntentsPush, d.api.URL()
	}
}

var errNewEpoch = errors.New("the cluster has a new epoch")

// renew begins the reading of intents again if the cluster's epoch has changed.
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

// besides serves the API of each door until run returns.
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
