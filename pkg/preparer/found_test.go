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

// found waits for exactly want instances that pass at the servers.
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

// podServices counts an agent's reads, and its writes about pods.
type podServices struct {
	register.Services
	writes, looks atomic.Int64
}

func (t *podServices) LocalServices(ctx context.Context, key, value string) (map[string]consul.Health, error) {
	defer t.looks.Add(1)
	return t.Services.LocalServices(ctx, key, value)
}

func (t *podServices) UpdateCheck(ctx context.Context, id string, passing bool, output string) error {
	if strings.HasPrefix(id, "rcfarm-pod-") {
		t.writes.Add(1)
	}
	return t.Services.UpdateCheck(ctx, id, passing, output)
}

func (t *podServices) RegisterService(ctx context.Context, one consul.Service) error {
	if strings.HasPrefix(one.ID, "rcfarm-pod-") {
		t.writes.Add(1)
	}
	return t.Services.RegisterService(ctx, one)
}

// Clients find a pod without a health check while its processes run, but not while one waits for its next start, or in
// a crash loop. Without changes, nothing is written to the agent.
func TestAPodWithoutACheckIsFoundWhileItWorks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	counted := &podServices{Services: b.client.Services}
	b.cfg.Services = counted
	b.start()
	m := b.pod(`[ ! -e "$POD_HOME/fail" ] || exit 3; exec sleep 1000`, "1")
	soon := field.Duration(manifest.MinBackoff)
	m.Launchables[0].Restart = &manifest.Restart{BackoffMin: &soon, BackoffMax: &soon}
	m.Ports = []manifest.Port{{Name: "http", Port: httpPort}, {Name: "admin", Port: httpPort + 1}}
	m.Service = &manifest.Service{Name: "found-" + b.cfg.Node.Name}
	name := m.Service.Name
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.found(name, 1)
	b.found(name+"-admin", 1)
	writes, looks := counted.writes.Load(), counted.looks.Load()
	if writes > 3 { // the preparer may notice only after the registration that the processes run
		t.Errorf("%d writes for two services and one state, want at most 3", writes)
	}
	b.eventually(func() error {
		if counted.looks.Load() < looks+5 {
			return errors.New("the agent was not read often enough")
		}
		return nil
	})
	if n := counted.writes.Load() - writes; n != 0 {
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
	for i, standby := range []bool{true, false} { // the name changes in the crash loop, too
		in := intent(0, digest, pod.Running, int64(20+10*i))
		in.Standby = standby
		b.write(in)
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

// Without a preparer, the node's check fails, and clients do not find pods without a check of their own. A restart of
// the preparer affects no pod.
func TestAPodWithoutACheckDependsOnItsNode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	plain, checked := b.sleeper("1"), b.server("2")
	plain.Service = &manifest.Service{Name: "plain-" + b.cfg.Node.Name}
	checked.Service = &manifest.Service{Name: "checked-" + b.cfg.Node.Name}
	one, two := b.upload(plain), b.upload(checked)
	b.write(intent(0, one, pod.Running, 10), intent(1, two, pod.Running, 10))
	b.awaitReady(0, one, 10)
	b.awaitReady(1, two, 10)
	b.awaitNamed()
	b.found(plain.Service.Name, 1)
	b.found(checked.Service.Name, 1)
	a.stop()
	b.found(plain.Service.Name, 1)
	nodeID := "rcfarm-node-" + b.cfg.Node.Name
	// As when the TTL of the node's check is over.
	if err := b.client.Services.UpdateCheck(t.Context(), nodeID, false, ""); err != nil {
		t.Fatal(err)
	}
	b.found(plain.Service.Name, 0)
	b.found(checked.Service.Name, 1)
	b.start()
	b.found(plain.Service.Name, 1)
	b.found(checked.Service.Name, 1)
}
