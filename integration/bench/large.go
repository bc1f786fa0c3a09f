package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// The first is in seconds after the kill: a farm's TTL of 2 s, and everything else.
const (
	largeLimit        = 3.5
	servicesOverPlain = 1.2 // times the time until all changes are carried out
)

const (
	largeFarms    = 3
	largeReplicas = 3
	afterwards    = 40 * time.Second
)

// The killed farm is the leader, except in the part follower.
const (
	plainPart    = "plain"
	followerPart = "follower"
	servicesPart = "services"
)

// failoverLargeBench kills one of three farms that share many controllers, and changes some of its controllers at the
// same moment. In the last part, some controllers belong to services with two revisions.
func failoverLargeBench(ctx context.Context, b *bench) error {
	var plain *takeover
	for _, part := range []string{plainPart, followerPart, servicesPart} {
		if !b.wants(part) {
			continue
		}
		t, err := b.failoverAmong(ctx, part)
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
		switch {
		case part == plainPart:
			plain = t
		case part == servicesPart && plain != nil:
			prefix := "failover-large/services/changes-carried-out-times-plain"
			b.report.add(prefix, t.lastChange.Seconds()/plain.lastChange.Seconds(), "ratio", atMost(servicesOverPlain))
			// Most of both times is the TTL. Compare also without it.
			ratio := (t.lastChange - t.session).Seconds() / (plain.lastChange - plain.session).Seconds()
			b.report.add(prefix+"-after-session", ratio, "ratio", goal{})
		}
	}
	return nil
}

func (b *bench) failoverAmong(ctx context.Context, part string) (*takeover, error) {
	var sc scope
	defer sc.close()
	dev, w, err := b.startWorld(ctx, &sc, manyClients, simnode.Fleet{
		Name: "n", Size: b.nodes, Groups: changeGroups, StartTime: 50 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	var farms []*process
	for i := range largeFarms {
		f, err := b.startFarm(ctx, &sc, w, fmt.Sprintf("farm-%d", i), "", dev.addr)
		if err != nil {
			return nil, err
		}
		farms = append(farms, f)
	}
	for _, f := range farms {
		if err := f.events.seen(ctx, syncedLine); err != nil {
			return nil, err
		}
	}
	rcs, err := b.largeWorld(ctx, w, part == servicesPart)
	if err != nil {
		return nil, err
	}
	if err := w.converged(ctx, len(rcs)); err != nil {
		return nil, err
	}
	if err := wait.Pause(ctx, atRest); err != nil {
		return nil, err
	}
	idle, err := b.watchRequests(ctx, dev.addr, atRest)
	if err != nil {
		return nil, err
	}
	if farms, err = w.leaderFirst(ctx, farms); err != nil {
		return nil, err
	}
	if part == followerPart {
		slices.Reverse(farms)
	}
	return b.killOneOf(ctx, w, "failover-large/"+part+"/", rcs, farms, idle)
}

func (w *world) leaderFirst(ctx context.Context, farms []*process) ([]*process, error) {
	state, err := election.Read(ctx, w.client, w.keys.Prefix(), store.FarmLease)
	if err != nil {
		return nil, err
	}
	leader, _ := state.Leader()
	i := slices.IndexFunc(farms, func(f *process) bool { return f.id == leader })
	if i < 0 {
		return nil, fmt.Errorf("farm %q leads, which is none of these", leader)
	}
	farms[0], farms[i] = farms[i], farms[0]
	return farms, nil
}

func (b *bench) largeWorld(ctx context.Context, w *world, services bool) ([]rc.RC, error) {
	var all []rc.RC
	if services {
		revisions, err := newServices("service", b.largeServices, largeReplicas, largeReplicas)
		if err != nil {
			return nil, err
		}
		if all, err = w.createAll(ctx, revisions); err != nil {
			return nil, err
		}
	}
	plain, err := w.create(ctx, "web", max(0, b.largeRCs-len(all)), largeReplicas, nil)
	return append(all, plain...), err
}

func (b *bench) killOneOf(
	ctx context.Context, w *world, prefix string, rcs []rc.RC, farms []*process, idle rate,
) (*takeover, error) {
	counts := b.countRequests(ctx, w.addr)
	counting := time.Now()
	t, err := w.killFirst(ctx, rcs, farms)
	if err != nil {
		return nil, err
	}
	t.report(&b.report, prefix)
	b.report.add(prefix+"all-owned", t.owned.Seconds(), "s", atMost(largeLimit))
	b.report.add(prefix+"changes-carried-out", t.lastChange.Seconds(), "s", atMost(largeLimit))
	if err := wait.Pause(ctx, afterwards-time.Since(t.started)); err != nil {
		return nil, err
	}
	perSecond := counts()
	perSecond = perSecond[min(len(perSecond), int(t.started.Sub(counting).Seconds())):] // since the kill, to a second
	const during = 5                                                                    // seconds
	total := 0.0
	for _, n := range perSecond[:min(during, len(perSecond))] {
		total += n - idle.others
	}
	b.report.add(prefix+"requests", total, "requests", goal{})
	b.report.add(prefix+"requests-per-controller", total/float64(t.controllers), "requests", goal{})
	b.report.add(prefix+"requests-worst-second", slices.Max(perSecond), "requests/s", goal{})
	if len(perSecond) > during {
		worst := slices.Max(perSecond[during:]) - idle.others
		b.report.add(prefix+"requests-afterwards-worst-second", worst, "requests/s", goal{})
	}
	return t, nil
}

// countRequests counts, by second, the requests that Consul answers, except for liveness, until stop is called.
func (b *bench) countRequests(ctx context.Context, addr string) (stop func() []float64) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	var perSecond []float64
	done := make(chan struct{})
	go func() {
		defer close(done)
		last, err := requestsOf(ctx, addr)
		for err == nil && wait.Pause(ctx, time.Second) == nil {
			var now requests
			if now, err = requestsOf(ctx, addr); err != nil {
				break
			}
			mu.Lock()
			perSecond = append(perSecond, now.others-last.others)
			mu.Unlock()
			if last = now; b.logs != "" {
				fmt.Fprintf(os.Stderr, "    %.0f requests in second %d\n", perSecond[len(perSecond)-1], len(perSecond))
			}
		}
	}()
	return func() []float64 { cancel(); <-done; return perSecond }
}
