// Package supervise keeps the processes of pods, through the runtime: what it has of each pod, what has to be done about that, and the commands
// that operators run beside them. It knows no intents, no records and no Consul.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/runtime"
)

// Processes are those of all pods, as the runtime has them.
type Processes struct {
	runtime runtime.Runtime
	step    func(name string)
	looking chan struct{} // holds whoever asks the runtime

	mu       sync.Mutex
	nextLook *look // that nobody carries out yet; nil when nobody waits for one
}

// New returns the processes of a runtime. step is told what was done.
func New(rt runtime.Runtime, step func(name string)) *Processes {
	return &Processes{runtime: rt, step: step, looking: make(chan struct{}, 1)}
}

// PodOf returns whose process a status is about. Of one whose record the runtime cannot read only the id is left, which
// begins with the identity; ok is false when it is nobody's.
func PodOf(status *runtime.Status) (id pod.Identity, ok bool) {
	if status.Phase != runtime.Unknown {
		return status.Spec.Pod, true
	}
	parts := strings.SplitN(status.Spec.ID, ".", 4)
	if len(parts) < 4 {
		return pod.Identity{}, false
	}
	index, err := strconv.Atoi(parts[2])
	id = pod.Identity{RCID: parts[0], Role: parts[1], Index: index}
	return id, err == nil && strings.HasPrefix(status.Spec.ID, install.FileName(id)+".")
}

// ByPod sorts what the runtime has by whose it is.
func ByPod(procs []runtime.Status) map[pod.Identity][]runtime.Status {
	sorted := map[pod.Identity][]runtime.Status{}
	for i := range procs {
		if id, ok := PodOf(&procs[i]); ok {
			sorted[id] = append(sorted[id], procs[i])
		}
	}
	return sorted
}

// Plan is what must be done so that exactly the wanted processes run.
type Plan struct {
	Stop   []string // still running, or on their way down
	Remove []string // to be forgotten, after stop
	Start  []string // after Remove
	Others bool     // wanted ones that need nothing are there
}

// Empty reports whether nothing must be done.
func (pl *Plan) Empty() bool { return len(pl.Stop)+len(pl.Remove)+len(pl.Start) == 0 }

// Compare compares the wanted ids with what the runtime has of the pod.
func Compare(wanted []string, procs []runtime.Status) Plan {
	var plan Plan
	have := map[string]bool{}
	for _, status := range procs {
		id := status.Spec.ID
		ending := status.Phase == runtime.Stopped || status.Phase == runtime.Stopping
		if slices.Contains(wanted, id) && !ending {
			have[id], plan.Others = true, true
			continue
		}
		if status.Phase != runtime.Stopped {
			plan.Stop = append(plan.Stop, id)
		}
		plan.Remove = append(plan.Remove, id)
	}
	for _, id := range wanted {
		if !have[id] {
			plan.Start = append(plan.Start, id)
		}
	}
	return plan
}

// look is one question to the runtime, asked on behalf of every worker that wanted to know before it was asked: the answer
// is about all pods, so that each of many workers asking for itself would make a start cost more the more pods there are.
type look struct {
	done  chan struct{} // closed when the rest is set
	procs map[pod.Identity][]runtime.Status
	err   error
	void  bool // whoever asked had to leave; the others ask again
}

// Of asks the runtime what it has of a pod at this moment.
func (s *Processes) Of(ctx context.Context, id pod.Identity) ([]runtime.Status, error) {
	for {
		l := s.joinLook()
		select {
		case <-l.done:
		case s.looking <- struct{}{}: // one at a time; what others want to know meanwhile is one question, too
			s.carryOutLook(ctx, l)
			<-s.looking
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		switch {
		case l.void && ctx.Err() == nil:
			continue
		case l.err != nil:
			return nil, fmt.Errorf("read processes of the runtime: %w", l.err)
		}
		return l.procs[id], nil
	}
}

// joinLook returns the look that is to be carried out next.
func (s *Processes) joinLook() *look {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nextLook == nil {
		s.nextLook = &look{done: make(chan struct{})}
	}
	return s.nextLook
}

// carryOutLook asks, unless somebody else has. The caller holds the place in looking.
func (s *Processes) carryOutLook(ctx context.Context, l *look) {
	select {
	case <-l.done:
		return
	default:
	}
	s.mu.Lock()
	s.nextLook = nil // who comes from now on may know of something newer
	s.mu.Unlock()
	var procs []runtime.Status
	procs, _, l.err = s.runtime.Watch(ctx, 0)
	l.void = l.err != nil && ctx.Err() != nil
	l.procs = ByPod(procs)
	close(l.done)
}

// Start starts a process. One that is there already is fine.
func (s *Processes) Start(ctx context.Context, spec runtime.Spec) error {
	s.step("start")
	if err := s.runtime.Start(ctx, spec); err != nil && !errors.Is(err, runtime.ErrExists) {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	s.step("start done")
	return nil
}

// Stop stops processes side by side, so that their graces do not add up.
func (s *Processes) Stop(ctx context.Context, ids []string) error {
	var all errgroup.Group
	for _, id := range ids {
		all.Go(func() error {
			s.step("stop")
			if err := s.runtime.Stop(ctx, id); err != nil {
				return fmt.Errorf("stop %s: %w", id, err)
			}
			s.step("stop done")
			return nil
		})
	}
	return all.Wait()
}

// Remove makes the runtime forget what is stopped.
func (s *Processes) Remove(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if err := s.runtime.Remove(ctx, id); err != nil {
			return fmt.Errorf("remove stopped process %s: %w", id, err)
		}
		s.step("remove done")
	}
	return nil
}
