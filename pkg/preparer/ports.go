package preparer

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/preparer/machine"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

type portLook struct {
	inUse   func(pods map[int]bool) ([]int, error) // nil: ports are not checked
	pods    *pods
	limiter *loop.LogLimiter

	mu       sync.Mutex
	steady   machine.Steady
	reported []int // for the node's record
}

func (p *portLook) look() (changed bool) {
	const key = "ports in use"
	if p.inUse == nil {
		return false
	}
	pods := p.pods.ports()
	found, err := p.inUse(pods)
	const message = "the ports that are in use on this machine cannot be read; " +
		"the node's record keeps the ports of the last look"
	if p.limiter.Saw(key, message, err) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.steady.Look(found, pods)
	changed = !slices.Equal(next, p.reported)
	p.reported = next
	return changed
}

func (p *portLook) inUseNow() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reported
}

// lookRest is the pause after a look, in multiples of its processor time. A look takes long on a machine with many
// connections, because the kernel lists them all.
const lookRest = 200

func (p *portLook) watch(ctx context.Context, every time.Duration) {
	for took := time.Duration(0); wait.Pause(ctx, max(every, lookRest*took)) == nil; {
		took = processorTime(func() {
			if p.look() {
				p.pods.record.Raise()
			}
		})
	}
}

// processorTime does not include the time that the function waits for a core.
func processorTime(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	f()
	return threadTime() - before
}

func threadTime() time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
		return 0 // impossible, because Linux has RUSAGE_THREAD since 2.6.26
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// ports returns the ports that pods of the node use or may use.
func (p *pods) ports() map[int]bool {
	all := map[int]bool{}
	p.do(func() {
		for _, e := range p.all {
			rec := e.accepted()
			if rec.StoppedAt != nil {
				continue
			}
			of := []map[string]int{rec.Intent.Ports, e.rec.Intent.Ports} // of the accepted and of the saved intent
			for _, in := range rec.live() {
				of = append(of, in.Ports)
			}
			for _, ports := range of {
				for _, port := range ports {
					all[port] = true
				}
			}
		}
	})
	return all
}
