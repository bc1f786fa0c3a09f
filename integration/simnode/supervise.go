package simnode

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// superviseEvery is how often a node looks for pods that must not run on.
const superviseEvery = 100 * time.Millisecond

// Supervise stops pods that run without contact for longer than StopsAfter says, as supervisors do, until ctx ends. It is to go on while the
// preparer is away, between Run and Resume. Such a pod starts again once its intent has been read and says so.
func (n *Node) Supervise(ctx context.Context) error {
	for {
		if err := wait.Pause(ctx, superviseEvery); err != nil {
			return err
		}
		n.stopSilent(time.Now())
	}
}

// contact notes that the node is in touch from now on, with the lock of its record, or is not any more. Whoever takes it for lost counts from the
// loss of the lock, so a session without it is no contact.
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

// stopSilent stops the pods that have run without contact for too long.
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
