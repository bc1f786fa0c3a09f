package simnode

import "github.com/rcfarm/rcfarm/pkg/store"

// saw notes an epoch of the cluster. Epochs sort by the time when they were made.
func (n *Node) saw(epoch string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.newest = max(n.newest, epoch)
}

// wentBack records that the store went back in time. The node's record shows it, because farms may have missed it.
func (n *Node) wentBack() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wentBackAt = n.newest
	return store.ErrWentBack
}

// wentBackSince returns wentBackAt, or "" if the store has not gone back, or if a farm has renewed the epoch since.
func (n *Node) wentBackSince(epoch string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if epoch > n.wentBackAt {
		return ""
	}
	return n.wentBackAt
}
