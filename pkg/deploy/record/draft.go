package record

import (
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Draft is all that a plan writes, in one transaction.
type Draft struct {
	Service string
	Seen    *Service // what it was made from, with the indices that are its conditions; nil: there must be no such service
	// Manifests are the new ones, in canonical JSON by digest.
	Manifests  map[string][]byte
	Signatures map[string]string // of those, where there are any
	Create     []rc.RC           // new controllers
	Change     []rc.RC           // controllers that are there, each with its next generation where that moves
	Delete     []string
	// Rollout is the record of the rollout; nil: none is needed.
	Rollout  *rollout.Record
	Deployed Deployed
	Entry    Entry
	// Forget are the revisions whose history goes.
	Forget []int64
	Audit  []string // what changes in the document
	Steps  []string // what the rollout begins with
}
