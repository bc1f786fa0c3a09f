package preparer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// tellAfter is how long something takes before a reality says that it is waited for: what is over sooner is no news.
const tellAfter = time.Second

// during says in the pod's reality what its worker waits for, until over is called.
func (p *Preparer) during(e *entry, doing string) (over func()) {
	ended := false // guarded by p.mu
	timer := time.AfterFunc(tellAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !ended {
			e.doing = doing
			p.changed(e)
		}
	})
	return func() {
		timer.Stop()
		p.mu.Lock()
		defer p.mu.Unlock()
		if ended = true; e.doing != "" {
			e.doing = ""
			p.changed(e)
		}
	}
}

// stopText says which of the processes are to stop, and how long they may take.
func stopText(procs []runtime.Status, stop []string) string {
	var names []string
	for i := range procs {
		if s := &procs[i].Spec; slices.Contains(stop, s.ID) && s.Name != "" {
			names = append(names, fmt.Sprintf("%s to stop, its grace is %s", s.Name, s.StopGrace))
		}
	}
	if len(names) == 0 {
		return "making sure that nothing of it runs"
	}
	return "waiting for " + strings.Join(names, "; for ")
}
