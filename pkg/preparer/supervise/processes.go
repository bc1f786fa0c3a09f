// Package supervise manages the processes of pods through the runtime. It does not use intents, records or Consul.
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

// Processes manages the processes of all pods in the runtime.
type Processes struct {
	runtime runtime.Runtime
	step    func(name string)
	begun   atomic.Uint64 // number of the newest read that has begun
	looking chan struct{} // holds a token while a goroutine uses latest, all and err

	mu     sync.Mutex
	silent chan struct{} // closed while the runtime does not answer

	latest uint64 // number of the last finished read
	all    map[pod.Identity][]runtime.Status
	err    error
}

// New calls step with the name of each step, for tests.
func New(rt runtime.Runtime, step func(name string)) *Processes {
	return &Processes{runtime: rt, step: step, looking: make(chan struct{}, 1), silent: make(chan struct{})}
}

// PodOf takes the pod from the process's id, which begins with the identity, if the runtime cannot read the record. ok
// is false if the process belongs to no pod.
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

// ByPod groups processes by their pods.
func ByPod(procs []runtime.Status) map[pod.Identity][]runtime.Status {
	sorted := map[pod.Identity][]runtime.Status{}
	for i := range procs {
		if id, ok := PodOf(&procs[i]); ok {
			sorted[id] = append(sorted[id], procs[i])
		}
	}
	return sorted
}

// Plan has the steps after which exactly the wanted processes run.
type Plan struct {
	Stop   []string // ids of processes to stop; they run or are being stopped
	Remove []string // ids that the runtime must forget, after Stop
	Start  []string // ids to start, after Remove
	Others bool     // some wanted processes run already
}

// Empty reports whether nothing must be done.
func (p *Plan) Empty() bool { return len(p.Stop)+len(p.Remove)+len(p.Start) == 0 }

// Compare compares the wanted ids with the pod's processes.
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

// CompareLimits returns the requests for processes with other limits than wanted. It leaves out processes that were
// started without limits, because the node had none then. live: the limits can change without a restart, because each
// process has limits, and runs without a crash loop or has ended with code 0.
func CompareLimits(wanted []runtime.LimitRequest, procs []runtime.Status) (asks []runtime.LimitRequest, live bool) {
	found := 0
	for i := range procs {
		s := &procs[i]
		at := slices.IndexFunc(wanted, func(to runtime.LimitRequest) bool { return to.ID == s.Spec.ID })
		iso := s.Spec.Isolation
		if at < 0 || iso == nil || iso.PIDs == 0 { // every process with limits has a limit of PIDs
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

// Of shares one answer of the runtime among concurrent calls, because each answer has the processes of all pods. Else a
// start would cost more with each pod. The read begins after all these calls.
func (p *Processes) Of(ctx context.Context, id pod.Identity) (procs []runtime.Status, err error) {
	err = p.answering(ctx, func(ctx context.Context) error {
		procs, err = p.of(ctx, id)
		return err
	})
	return procs, err
}

func (p *Processes) of(ctx context.Context, id pod.Identity) ([]runtime.Status, error) {
	want := p.begun.Load() + 1
	select {
	case p.looking <- struct{}{}:
		defer func() { <-p.looking }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if p.latest < want {
		begun := p.begun.Add(1)
		procs, _, err := p.runtime.Watch(ctx, 0)
		if err != nil && ctx.Err() != nil { // this caller's context has ended; the other callers read themselves
			return nil, fmt.Errorf("read processes of the runtime: %w", err)
		}
		p.latest, p.all, p.err = begun, ByPod(procs), err
	}
	if p.err != nil {
		return nil, fmt.Errorf("read processes of the runtime: %w", p.err)
	}
	return p.all[id], nil
}

// Start returns nil if the process exists already.
func (p *Processes) Start(ctx context.Context, spec runtime.Spec) error {
	p.step("start")
	err := p.answering(ctx, func(ctx context.Context) error { return p.runtime.Start(ctx, spec) })
	if err != nil && !errors.Is(err, runtime.ErrExists) {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p.step("start done")
	return nil
}

// Stop stops processes in parallel, so that their graces do not add up.
func (p *Processes) Stop(ctx context.Context, ids []string) error {
	var all errgroup.Group
	for _, id := range ids {
		all.Go(func() error {
			p.step("stop")
			if err := p.answering(ctx, func(ctx context.Context) error { return p.runtime.Stop(ctx, id) }); err != nil {
				return fmt.Errorf("stop %s: %w", id, err)
			}
			p.step("stop done")
			return nil
		})
	}
	return all.Wait()
}

// Restart ends one run of a process and starts the next. An error to test for: runtime.ErrTooOld.
func (p *Processes) Restart(ctx context.Context, ask runtime.RestartRequest) error {
	p.step("restart")
	if err := p.answering(ctx, func(ctx context.Context) error { return p.runtime.Restart(ctx, ask) }); err != nil {
		return fmt.Errorf("restart %s: %w", ask.ID, err)
	}
	p.step("restart done")
	return nil
}

// Relimit changes limits. Errors to test for: runtime.ErrKeepsLimits, runtime.ErrTooOld.
func (p *Processes) Relimit(ctx context.Context, to runtime.LimitRequest) error {
	p.step("relimit")
	if err := p.answering(ctx, func(ctx context.Context) error { return p.runtime.Relimit(ctx, to) }); err != nil {
		return fmt.Errorf("limits of %s: %w", to.ID, err)
	}
	p.step("relimit done")
	return nil
}

// Remove makes the runtime forget stopped processes.
func (p *Processes) Remove(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if err := p.answering(ctx, func(ctx context.Context) error { return p.runtime.Remove(ctx, id) }); err != nil {
			return fmt.Errorf("remove stopped process %s: %w", id, err)
		}
		p.step("remove done")
	}
	return nil
}
