package simnode

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const superviseEvery = 100 * time.Millisecond

// Supervise stops pods that run without contact to Consul for longer than StopsAfter allows, until ctx ends. It acts as
// the supervisor, so it must also run between Run and Resume. A stopped pod starts again when the node reads its
// intent.
func (n *Node) Supervise(ctx context.Context) error {
	for {
		if err := wait.Pause(ctx, superviseEvery); err != nil {
			return err
		}
		n.stopSilent(time.Now())
	}
}

// contact notes whether the node holds the lock of its record. A session without the lock is no contact, because farms
// measure a lost node's time from the loss of the lock.
func (n *Node) contact(begins bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case begins:
		n.silent = time.Time{}
	case n.silent.IsZero():
		n.silent = time.Now()
	}
}

func (n *Node) stopSilent(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.StopsAfter == nil || n.silent.IsZero() {
		return
	}
	for id, in := range n.runs {
		after, stops := n.StopsAfter(in.Digest)
		if in.State != pod.Running || n.held[id] || !stops || now.Sub(n.silent) < after {
			continue
		}
		n.held[id] = true
		r := n.done[id]
		r.State, r.Available, r.Since = pod.StatePending, false, now.UTC()
		n.done[id] = r
		if n.OnStopped != nil {
			n.OnStopped(in, n.silent)
		}
	}
}
