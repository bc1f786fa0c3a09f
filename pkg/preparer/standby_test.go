package preparer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// reports has each written reality, with the agent's services right before.
type reports struct {
	preparer.Session

	b    *bench
	asks map[int64]bool // by revision: whether the intent has standby
	mu   sync.Mutex
	all  []reportBeside
}

type reportBeside struct {
	reality  pod.Reality
	services map[string]bool
}

func (t *reports) WriteRealities(ctx context.Context, writes ...store.RealityWrite) (uint64, error) {
	local, err := t.b.client.Services.LocalServices(ctx, register.MetaNode, t.b.cfg.Node.Name)
	if err != nil {
		return 0, err
	}
	has := map[string]bool{}
	for id := range local {
		has[id] = true
	}
	index, err := t.Session.WriteRealities(ctx, writes...)
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range writes {
		t.all = append(t.all, reportBeside{writes[i].Reality, has})
	}
	return index, err
}

// mustAgree: since a revision, the pod was always available, and no reality had a switch before the agent.
func (t *reports) mustAgree(since int64) {
	t.b.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	main := register.ServiceID(t.b.cfg.Node.Name, identity(0))
	standby := register.StandbyServiceID(t.b.cfg.Node.Name, identity(0))
	for _, s := range t.all {
		switch {
		case s.reality.Revision < since:
		case !s.reality.Available:
			t.b.t.Errorf("not available at %d: %s", s.reality.Revision, s.reality.State)
		case s.reality.Standby != t.asks[s.reality.Revision]: // not switched yet
		case s.reality.Standby && (s.services[main] || !s.services[standby]), !s.reality.Standby && !s.services[main]:
			t.b.t.Errorf("reported at %d, standing by: %v, while the agent had %v",
				s.reality.Revision, s.reality.Standby, s.services)
		}
	}
}

func (b *bench) awaitStandby(revision int64, digest string, standby bool) {
	b.t.Helper()
	b.awaitReality(0, fmt.Sprintf("available at %d, standing by: %v", revision, standby), func(r pod.Reality) bool {
		return r.State == pod.StateReady && r.Available && r.Digest == digest && r.Revision == revision &&
			r.Standby == standby
	})
	id := register.ServiceID(b.cfg.Node.Name, identity(0))
	if standby {
		id = register.StandbyServiceID(b.cfg.Node.Name, identity(0))
	}
	b.eventually(func() error {
		if local := b.services(); !maps.Equal(local, map[string]bool{id: true}) {
			return fmt.Errorf("services %v, want %s passing", local, id)
		}
		return nil
	})
}

// A standby has another name, with its check. A switch of the name restarts no process, keeps the pod available,
// because min_ready does not begin again, and writes no drop, because the intent asks for it.
func TestStandbyPodsAreRegisteredUnderAnotherName(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]func(b *bench) manifest.Manifest{
		"http": func(b *bench) manifest.Manifest { return b.server("1") },
		"script": func(b *bench) manifest.Manifest {
			m := b.sleeper("1")
			b.addProgram(m, "bin/check", "exit 0")
			interval := field.Duration(time.Second)
			m.Health = &manifest.Health{Script: &manifest.ScriptCheck{Path: "bin/check"}, Interval: &interval}
			return m
		},
		"no check": func(b *bench) manifest.Manifest { return b.sleeper("1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			m := m(b)
			ready := field.Duration(2 * time.Second)
			m.MinReady = &ready
			digest := b.upload(m)
			written := &reports{b: b, asks: map[int64]bool{20: false, 30: true, 40: false, 50: true}}
			wrap := func(t preparer.Session) preparer.Session { written.Session = t; return written }
			a := b.startWith(wrap)
			in := intent(0, digest, pod.Running, 10)
			in.Standby = true
			b.write(in)
			b.awaitStandby(10, digest, true)
			pid := b.pid(0)
			for revision := int64(20); revision < 60; revision += 10 {
				if revision == 50 { // the next preparer makes the switch
					a.stop()
				}
				in.Standby, in.Revision = !in.Standby, revision
				b.write(in)
				if revision == 50 {
					b.startWith(wrap)
				}
				b.awaitStandby(revision, digest, in.Standby)
				b.mustKeepPID(0, pid)
			}
			written.mustAgree(20)
			in.State, in.Revision = pod.Stopped, 70
			b.write(in)
			b.awaitState(0, pod.StateStopped, 70, "")
			if local := b.services(); len(local) > 0 {
				t.Errorf("services %v of a stopped pod", local)
			}
			pair, err := b.client.Get(t.Context(), b.keys.Drops.Key("rc1"), consul.Consistent)
			if !errors.Is(err, consul.ErrNotFound) {
				t.Errorf("drops %+v, %v; want none", pair, err)
			}
		})
	}
}

// All ports of a standby have other names.
func TestStandbyRenamesTheServiceOfEachPort(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.server("1")
	m.Service = &manifest.Service{Name: "shop", Meta: map[string]string{"team": "a"}}
	m.Ports = append(m.Ports, manifest.Port{Name: "admin", Port: httpPort + 1})
	in := intent(0, b.upload(m), pod.Running, 10)
	in.Standby = true
	b.write(in)
	b.awaitReady(0, in.Digest, 10)
	main, admin := strconv.Itoa(httpPort), strconv.Itoa(httpPort+1)
	id := register.StandbyServiceID(b.cfg.Node.Name, identity(0))
	b.awaitServices(
		map[string]string{id: "shop-standby:" + main, id + ".admin": "shop-admin-standby:" + admin}, m.Service,
	)
	in.Standby, in.Revision = false, 20
	b.write(in)
	b.awaitReady(0, in.Digest, 20)
	id = register.ServiceID(b.cfg.Node.Name, identity(0))
	b.awaitServices(map[string]string{id: "shop:" + main, id + ".admin": "shop-admin:" + admin}, m.Service)
}

// A pod that must stop serves for a while after it was deregistered, but a standby stops at once.
func TestStoppedPodServesOnUntilItsClientsHaveLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.server("1")
	drain := field.Duration(manifest.MaxDrain)
	m.Service = &manifest.Service{Drain: &drain}
	in := intent(0, b.upload(m), pod.Running, 10)
	b.write(in)
	b.awaitReady(0, in.Digest, 10)
	pid := b.pid(0)
	stop := in
	stop.State, stop.Revision = pod.Stopped, 20
	b.write(stop)
	b.awaitState(0, pod.StateStopping, 20, "serving on after it was deregistered")
	if local := b.services(); len(local) > 0 {
		t.Errorf("services %v", local)
	}
	b.mustKeepPID(0, pid)
	b.checkEnvironment(in.Digest) // the pod still answers

	m.Ports[0].Port++
	aside := intent(1, b.upload(m), pod.Running, 10)
	aside.Standby = true
	b.write(aside)
	b.awaitReady(1, aside.Digest, 10)
	aside.State, aside.Revision = pod.Stopped, 20
	b.write(aside)
	b.awaitState(1, pod.StateStopped, 20, "")
}
