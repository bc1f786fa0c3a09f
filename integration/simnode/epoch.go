package simnode

import "github.com/rcfarm/rcfarm/pkg/store"

// saw notes a cluster epoch. They sort by the time of their making.
func (n *Node) saw(epoch string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.newest = max(n.newest, epoch)
}

// wentBack notes that the store went back in time, which the node's record tells the farms: they may have missed it.
func (n *Node) wentBack() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wentBackAt = n.newest
	return store.ErrWentBack
}

// wentBackSince returns when the store was seen to go back, "" if a farm has answered that with a newer epoch.
func (n *Node) wentBackSince(epoch string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if epoch > n.wentBackAt {
		return ""
	}
	return n.wentBackAt
}
