package node

import "github.com/rcfarm/rcfarm/pkg/pod"

// OrphanPages says, in a node's record, where the pods are listed that run there without a matching intent. The zero value
// says that there are none.
type OrphanPages struct {
	Edition string `json:"edition,omitempty"` // that every page bears; another one whenever the list changes
	Count   int    `json:"count"`             // of the pages, which are numbered from zero
	Orphans int    `json:"orphans"`           // on all of them
}

// OrphanPage is a part of that list, at orphans/<node>/<n>: one record could not hold all that a machine may run.
type OrphanPage struct {
	Node    string       `json:"node"`
	Page    int          `json:"page"`
	Edition string       `json:"edition"`
	Nonce   string       `json:"nonce"` // that the preparer had seen when it wrote the page
	Orphans []pod.Orphan `json:"orphans"`
}

// Spoke reports whether the node has said, under a cluster nonce, what it runs, and all of that is known (R1).
func (v *View) Spoke(nonce string) bool { return v.Nonce == nonce && !v.OrphansUnread }

// OrphanCount is how many pods the record says run without a matching intent.
func (n *Node) OrphanCount() int {
	if n.OrphanPages != nil {
		return n.OrphanPages.Orphans
	}
	return len(n.Orphans) + n.OrphansLeftOut
}
