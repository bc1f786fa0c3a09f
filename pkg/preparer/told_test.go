package preparer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
)

// found waits until the servers have so many instances of a service that pass, with all that they depend on.
func (b *bench) found(service string, want int) {
	b.t.Helper()
	b.eventually(func() error {
		found, err := b.client.Catalog.Passing(b.t.Context(), service, register.MetaNode, b.cfg.Node.Name)
		if err == nil && len(found) != want {
			err = fmt.Errorf("%d instances of %s pass, want %d", len(found), service, want)
		}
		return err
	})
}

// toldServices counts what is written about pods.
type toldServices struct {
	register.Services
	writes, looks atomic.Int64
}

func (s *toldServices) LocalServices(ctx context.Context, key, value string) (map[string]consul.Health, error) {
	defer s.looks.Add(1)
	return s.Services.LocalServices(ctx, key, value)
}

func (s *toldServices) UpdateCheck(ctx context.Context, id string, passing bool, output string) error {
	if strings.HasPrefix(id, "rcfarm-pod-") {
		s.writes.Add(1)
	}
	return s.Services.UpdateCheck(ctx, id, passing, output)
}

func (s *toldServices) RegisterService(ctx context.Context, one consul.Service) error {
	if strings.HasPrefix(one.ID, "rcfarm-pod-") {
		s.writes.Add(1)
	}
	return s.Services.RegisterService(ctx, one)
}

// A pod without a health check is found while its processes run: not while one waits to be started again, nor in a
// crash loop. What does not change is not written.
func TestAPodWithoutACheckIsFoundWhileItWorks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	told := &toldServices{Services: b.client.Services}
	b.cfg.Services = told
	b.start()
	m := b.pod(`[ ! -e "$POD_HOME/fail" ] || exit 3; exec sleep 1000`, "1")
	soon := field.Duration(manifest.MinBackoff)
	m.Launchables[0].Restart = &manifest.Restart{BackoffMin: &soon, BackoffMax: &soon}
	m.Ports = []manifest.Port{{Name: "http", Port: httpPort}, {Name: "admin", Port: httpPort + 1}}
	m.Service = &manifest.Service{Name: "told-" + b.cfg.Node.Name}
	name := m.Service.Name
	digest := b.upload(m)
	b.tell(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.found(name, 1)
	b.found(name+"-admin", 1)
	writes, looks := told.writes.Load(), told.looks.Load()
	if writes > 3 { // that its processes run may be seen after it was registered
		t.Errorf("%d writes for two services and one state, want at most 3", writes)
	}
	b.eventually(func() error {
		if told.looks.Load() < looks+5 {
			return errors.New("the agent was not looked at often enough")
		}
		return nil
	})
	if n := told.writes.Load() - writes; n != 0 {
		t.Errorf("%d writes while nothing changed", n)
	}
	if err := os.WriteFile(b.homeFile(0, "fail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(b.pid(0), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.awaitState(0, pod.StateCrashLooping, 10, "")
	b.found(name, 0)
	b.found(name+"-admin", 0)
	for i, standby := range []bool{true, false} { // it changes its name all the same
		in := intent(0, digest, pod.Running, int64(20+10*i))
		in.Standby = standby
		b.tell(in)
		b.awaitReality(0, fmt.Sprintf("stands by: %t", standby), func(r pod.Reality) bool {
			return r.Revision == in.Revision && r.Standby == standby && !r.Available
		})
		b.found(name, 0)
		b.found(name+"-standby", 0)
	}
	if err := os.Remove(b.homeFile(0, "fail")); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(0, digest, 30)
	b.found(name, 1)
	b.found(name+"-admin", 1)
}

// A pod without a check of its own is not found where nobody keeps its node up, and one with a check is. A restart of
// the preparer takes neither out.
func TestAPodWithoutACheckDependsOnItsNode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	plain, checked := b.sleeper("1"), b.server("2")
	plain.Service = &manifest.Service{Name: "plain-" + b.cfg.Node.Name}
	checked.Service = &manifest.Service{Name: "checked-" + b.cfg.Node.Name}
	one, two := b.upload(plain), b.upload(checked)
	b.tell(intent(0, one, pod.Running, 10), intent(1, two, pod.Running, 10))
	b.awaitReady(0, one, 10)
	b.awaitReady(1, two, 10)
	b.awaitNamed()
	b.found(plain.Service.Name, 1)
	b.found(checked.Service.Name, 1)
	a.stop()
	b.found(plain.Service.Name, 1)
	nodeID := "rcfarm-node-" + b.cfg.Node.Name
	if err := b.client.Services.UpdateCheck(t.Context(), nodeID, false, ""); err != nil { // as when its time is over
		t.Fatal(err)
	}
	b.found(plain.Service.Name, 0)
	b.found(checked.Service.Name, 1)
	b.start()
	b.found(plain.Service.Name, 1)
	b.found(checked.Service.Name, 1)
}
