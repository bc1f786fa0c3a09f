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

// told are the realities of a pod as they were reported, with the services that the agent had right before.
type told struct {
	preparer.Session

	b    *bench
	asks map[int64]bool // whether a revision asks it to stand by
	mu   sync.Mutex
	said []saying
}

type saying struct {
	reality  pod.Reality
	services map[string]bool
}

func (t *told) WriteRealities(ctx context.Context, writes ...store.RealityWrite) (uint64, error) {
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
		t.said = append(t.said, saying{writes[i].Reality, has})
	}
	return index, err
}

// mustAgree looks at all that was said since a revision: the pod was available throughout, and no reality was ahead of the agent.
func (t *told) mustAgree(since int64) {
	t.b.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	main, standby := register.ServiceID(t.b.cfg.Node.Name, identity(0)), register.StandbyServiceID(t.b.cfg.Node.Name, identity(0))
	for _, s := range t.said {
		switch {
		case s.reality.Revision < since:
		case !s.reality.Available:
			t.b.t.Errorf("not available at %d: %s", s.reality.Revision, s.reality.State)
		case s.reality.Standby != t.asks[s.reality.Revision]: // not switched yet
		case s.reality.Standby && (s.services[main] || !s.services[standby]), !s.reality.Standby && !s.services[main]:
			t.b.t.Errorf("said at %d, standing by: %v, while the agent had %v", s.reality.Revision, s.reality.Standby, s.services)
		}
	}
}

func (b *bench) awaitStandby(revision int64, digest string, standby bool) {
	b.t.Helper()
	b.awaitReality(0, fmt.Sprintf("available at %d, standing by: %v", revision, standby), func(r pod.Reality) bool {
		return r.State == pod.StateReady && r.Available && r.Digest == digest && r.Revision == revision && r.Standby == standby
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

// A pod that stands by is registered under another name, with its check. Its name is switched without a restart, and it is available
// throughout: min_ready is not counted again. Its leaving its name is no drop, because its intent says so.
func TestStandby(t *testing.T) {
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
			said := &told{b: b, asks: map[int64]bool{20: false, 30: true, 40: false, 50: true}}
			wrap := func(t preparer.Session) preparer.Session { said.Session = t; return said }
			a := b.startWith(wrap)
			in := intent(0, digest, pod.Running, 10)
			in.Standby = true
			b.tell(in)
			b.awaitStandby(10, digest, true)
			pid := b.pid(0)
			for revision := int64(20); revision < 60; revision += 10 {
				if revision == 50 { // the successor finds the switch to be done
					a.stop()
				}
				in.Standby, in.Revision = !in.Standby, revision
				b.tell(in)
				if revision == 50 {
					b.startWith(wrap)
				}
				b.awaitStandby(revision, digest, in.Standby)
				b.mustKeepPID(0, pid)
			}
			said.mustAgree(20)
			in.State, in.Revision = pod.Stopped, 70
			b.tell(in)
			b.awaitState(0, pod.StateStopped, 70, "")
			if local := b.services(); len(local) > 0 {
				t.Errorf("services %v of a stopped pod", local)
			}
			if pair, err := b.client.Get(t.Context(), b.keys.Drops.Key("rc1"), consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
				t.Errorf("drops %+v, %v; want none", pair, err)
			}
		})
	}
}

// The ports of a pod that stands by are found under other names as well.
func TestStandbyOfEachPort(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.server("1")
	m.Service = &manifest.Service{Name: "shop", Meta: map[string]string{"team": "a"}}
	m.Ports = append(m.Ports, manifest.Port{Name: "admin", Port: httpPort + 1})
	in := intent(0, b.upload(m), pod.Running, 10)
	in.Standby = true
	b.tell(in)
	b.awaitReady(0, in.Digest, 10)
	main, admin := strconv.Itoa(httpPort), strconv.Itoa(httpPort+1)
	id := register.StandbyServiceID(b.cfg.Node.Name, identity(0))
	b.awaitServices(map[string]string{id: "shop-standby:" + main, id + ".admin": "shop-admin-standby:" + admin}, m.Service)
	in.Standby, in.Revision = false, 20
	b.tell(in)
	b.awaitReady(0, in.Digest, 20)
	id = register.ServiceID(b.cfg.Node.Name, identity(0))
	b.awaitServices(map[string]string{id: "shop:" + main, id + ".admin": "shop-admin:" + admin}, m.Service)
}

// A pod that is stopped serves on for a while after it was deregistered, unless it stood by.
func TestDrain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.server("1")
	drain := field.Duration(manifest.MaxDrain)
	m.Service = &manifest.Service{Drain: &drain}
	in := intent(0, b.upload(m), pod.Running, 10)
	b.tell(in)
	b.awaitReady(0, in.Digest, 10)
	pid := b.pid(0)
	stop := in
	stop.State, stop.Revision = pod.Stopped, 20
	b.tell(stop)
	b.awaitState(0, pod.StateStopping, 20, "serving on after it was deregistered")
	if local := b.services(); len(local) > 0 {
		t.Errorf("services %v", local)
	}
	b.mustKeepPID(0, pid)
	b.checkEnvironment(in.Digest) // it answers

	m.Ports[0].Port++
	aside := intent(1, b.upload(m), pod.Running, 10)
	aside.Standby = true
	b.tell(aside)
	b.awaitReady(1, aside.Digest, 10)
	aside.State, aside.Revision = pod.Stopped, 20
	b.tell(aside)
	b.awaitState(1, pod.StateStopped, 20, "")
}
