package farm

import (
	"context"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// RCIDLabel is the label that every pod of a controller carries with the controller's id.
const RCIDLabel = pod.RCIDLabel

// ReplicationController is one controller that this farm owns. One goroutine at a time works on it. Or it is one that New returned, which a
// farm of its own owns while WatchDesires runs.
type ReplicationController struct {
	ID       string
	kit      *kit
	log      obs.Logger
	memory   memory // of whoever works on it
	standing standing
	watch    func(context.Context) error // of one that New returned: its farm
}

// newController begins a tenure: the first read under its lock is consistent.
func (f *Farm) newController(id string, fence store.Fence) *ReplicationController {
	return &ReplicationController{ID: id, kit: f.kit, log: f.log.WithField(obs.RCID, id), memory: memory{fence: fence, consistent: true}}
}

// look makes one pass over the controller. It returns when to look again even if nothing rings.
func (c *ReplicationController) look(ctx context.Context) (again time.Duration, err error) {
	ps := c.newPass()
	again, err = ps.run(ctx)
	c.memory = ps.mem
	return again, err
}

func (c *ReplicationController) newPass() *pass {
	ps := &pass{kit: c.kit, id: c.ID, log: c.log, mem: c.memory, standing: &c.standing}
	ps.room = &finder{kit: c.kit, log: c.log, reserved: map[string]store.Rec[node.Reservation]{}}
	ps.books = &booking{kit: c.kit, id: c.ID, log: c.log, mem: &ps.mem, room: ps.room}
	return ps
}

// gather returns how long a look should wait for more reports of nodes, where these are all that is waited for.
func (c *ReplicationController) gather(busy int64) time.Duration {
	if !c.memory.expects.nodes {
		return 0
	}
	return c.standing.looks.Gather(busy)
}
