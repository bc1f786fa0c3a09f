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
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// Processes are those of all pods, as the runtime has them.
type Processes struct {
	runtime runtime.Runtime
	step    func(name string)
	begun   atomic.Uint64 // number of the newest question that has begun
	looking chan struct{} // holds whoever looks at what follows

	mu     sync.Mutex
	silent chan struct{} // closed while the runtime is known not to answer

	latest uint64 // number of the question that was answered so
	all    map[pod.Identity][]runtime.Status
	err    error
}

// New returns the processes of a runtime. step is told what was done.
func New(rt runtime.Runtime, step func(name string)) *Processes {
	return &Processes{runtime: rt, step: step, looking: make(chan struct{}, 1), silent: make(chan struct{})}
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

// CompareLimits compares the limits that processes of a pod are to have with those that the runtime has of them, and
// returns what is to be asked. It leaves out those that were started on a node without limits. live reports whether
// all of them run well with limits, or have done their work, so that others can be had without a start.
func CompareLimits(wanted []runtime.LimitRequest, procs []runtime.Status) (asks []runtime.LimitRequest, live bool) {
	found := 0
	for i := range procs {
		s := &procs[i]
		at := slices.IndexFunc(wanted, func(to runtime.LimitRequest) bool { return to.ID == s.Spec.ID })
		iso := s.Spec.Isolation
		if at < 0 || iso == nil || iso.PIDs == 0 { // every process that is held to limits has one of those
			continue
		}
		switch {
		case s.Phase == runtime.Running && s.ShortRuns < pod.CrashLoop:
			found++
		case s.Phase == runtime.Exited && s.LastExit != nil && s.LastExit.Code == 0 && !s.LastExit.Unknown:
			found++
		}
		if to := wanted[at]; s.Phase != runtime.Unknown && (to.CPU != iso.CPU || to.Memory != iso.Memory) {
			asks = append(asks, to)
		}
	}
	return asks, len(wanted) > 0 && found == len(wanted)
}

// Of asks the runtime what it has of a pod at this moment. Workers that ask at the same time share one question, asked after all of them
// wanted to know: the answer is about all pods, so that each asking for itself would make a start cost more the more pods there are.
func (s *Processes) Of(ctx context.Context, id pod.Identity) (procs []runtime.Status, err error) {
	err = s.answering(ctx, func(ctx context.Context) error {
		procs, err = s.of(ctx, id)
		return err
	})
	return procs, err
}

func (s *Processes) of(ctx context.Context, id pod.Identity) ([]runtime.Status, error) {
	want := s.begun.Load() + 1
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if s.latest < want {
		begun := s.begun.Add(1)
		procs, _, err := s.runtime.Watch(ctx, 0)
		if err != nil && ctx.Err() != nil { // the others ask for themselves
			return nil, fmt.Errorf("read processes of the runtime: %w", err)
		}
		s.latest, s.all, s.err = begun, ByPod(procs), err
	}
	if s.err != nil {
		return nil, fmt.Errorf("read processes of the runtime: %w", s.err)
	}
	return s.all[id], nil
}

// Start starts a process. One that is there already is fine.
func (s *Processes) Start(ctx context.Context, spec runtime.Spec) error {
	s.step("start")
	err := s.answering(ctx, func(ctx context.Context) error { return s.runtime.Start(ctx, spec) })
	if err != nil && !errors.Is(err, runtime.ErrExists) {
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
			if err := s.answering(ctx, func(ctx context.Context) error { return s.runtime.Stop(ctx, id) }); err != nil {
				return fmt.Errorf("stop %s: %w", id, err)
			}
			s.step("stop done")
			return nil
		})
	}
	return all.Wait()
}

// Restart has the runtime end one run of a process and begin the next. An error to test for: runtime.ErrTooOld.
func (s *Processes) Restart(ctx context.Context, ask runtime.RestartRequest) error {
	s.step("restart")
	if err := s.answering(ctx, func(ctx context.Context) error { return s.runtime.Restart(ctx, ask) }); err != nil {
		return fmt.Errorf("restart %s: %w", ask.ID, err)
	}
	s.step("restart done")
	return nil
}

// Relimit has the runtime hold a process to other limits. Errors to test for: runtime.ErrKeepsLimits,
// runtime.ErrTooOld.
func (s *Processes) Relimit(ctx context.Context, to runtime.LimitRequest) error {
	s.step("relimit")
	if err := s.answering(ctx, func(ctx context.Context) error { return s.runtime.Relimit(ctx, to) }); err != nil {
		return fmt.Errorf("limits of %s: %w", to.ID, err)
	}
	s.step("relimit done")
	return nil
}

// Remove makes the runtime forget what is stopped.
func (s *Processes) Remove(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if err := s.answering(ctx, func(ctx context.Context) error { return s.runtime.Remove(ctx, id) }); err != nil {
			return fmt.Errorf("remove stopped process %s: %w", id, err)
		}
		s.step("remove done")
	}
	return nil
}
