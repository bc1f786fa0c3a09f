package preparer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
)

// writtenServices counts an agent's reads and writes, and logs the writes.
type writtenServices struct {
	register.Services
	t      *testing.T
	who    string
	looks  atomic.Int64
	writes atomic.Int64
}

func (w *writtenServices) LocalServices(ctx context.Context, key, value string) (map[string]consul.Health, error) {
	defer w.looks.Add(1)
	return w.Services.LocalServices(ctx, key, value)
}

func (w *writtenServices) RegisterService(ctx context.Context, s consul.Service) error {
	w.writes.Add(1)
	w.t.Logf("%s registers %s", w.who, s.ID)
	return w.Services.RegisterService(ctx, s)
}

func (w *writtenServices) DeregisterService(ctx context.Context, id string) error {
	w.writes.Add(1)
	w.t.Logf("%s deregisters %s", w.who, id)
	return w.Services.DeregisterService(ctx, id)
}

func (w *writtenServices) UpdateCheck(ctx context.Context, id string, passing bool, output string) error {
	w.writes.Add(1)
	return w.Services.UpdateCheck(ctx, id, passing, output)
}

// A preparer that is refused its node's name does not change the services of the one that has it, with a new data
// directory, or an old one that had the name and in which the pod is stopped.
func TestARefusedPreparerTouchesNoService(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]bool{"a new directory": false, "a stale directory": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, prefix := consultest.Client(t)
			first := newBenchAt(t, client, prefix)
			owner := &writtenServices{Services: client.Services, t: t, who: "the owner"}
			first.cfg.Services = owner

			second := newBenchAt(t, client, prefix)
			second.cfg.Node = first.cfg.Node
			if stale { // it had the name before, and stopped the pod
				a := second.start()
				digest := second.upload(second.sleeper("0"))
				second.write(intent(0, digest, pod.Running, 1))
				second.awaitReady(0, digest, 1)
				second.write(intent(0, digest, pod.Stopped, 2))
				second.awaitState(0, pod.StateStopped, 2, "")
				second.awaitNamed()
				a.stop()
				client, key := second.client, second.keys.Nodes.Key(second.cfg.Node.Name)
				if _, err := client.Commit(t.Context(), []consul.Op{consul.Delete(key)}); err != nil {
					t.Fatal(err)
				}
			}
			first.start()
			digest := first.upload(first.sleeper("1"))
			first.write(intent(0, digest, pod.Running, 10))
			first.awaitReady(0, digest, 10)
			id := register.ServiceID(first.cfg.Node.Name, identity(0))
			first.eventually(func() error {
				if local := first.services(); !local[id] {
					return fmt.Errorf("services %v, want %s passing", local, id)
				}
				return nil
			})
			before := owner.writes.Load()

			intruder := &writtenServices{Services: client.Services, t: t, who: "the refused one"}
			second.cfg.Services = intruder
			r := &refusals{}
			second.startCounting(r)
			second.awaitRefusals(r, 3)
			looks := intruder.looks.Load()
			second.eventually(func() error {
				if intruder.looks.Load() < looks+5 {
					return errors.New("the agent was not looked at often enough")
				}
				return nil
			})
			if wrote, again := intruder.writes.Load(), owner.writes.Load()-before; wrote != 0 || again != 0 {
				t.Errorf("the refused preparer wrote %d times to the agent, and the owner %d times more", wrote, again)
			}
			if local := first.services(); !local[id] {
				t.Errorf("services %v, want %s passing", local, id)
			}
		})
	}
}

// Without a session, and with a data directory that never had the name, a preparer changes no service, because another
// preparer may have it.
func TestAnUnprovenPreparerTouchesNoService(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	digest := b.upload(b.sleeper("1"))
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitReady(0, digest, 10)
	b.awaitNamed()
	a.stop()
	id := register.ServiceID(b.cfg.Node.Name, identity(0))
	look := func(dir string) *writtenServices {
		t.Helper()
		w := &writtenServices{Services: b.client.Services, t: t, who: dir}
		b.cfg.Services = w
		alone := b.startAlone()
		defer alone.stop()
		b.eventually(func() error {
			if w.looks.Load() < 5 {
				return errors.New("the agent was not looked at often enough")
			}
			return nil
		})
		return w
	}
	if err := os.Remove(filepath.Join(b.cfg.Dir, "name.json")); err != nil {
		t.Fatal(err)
	}
	if err := b.client.Services.DeregisterService(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if w := look("without a note"); w.writes.Load() != 0 {
		t.Errorf("it wrote %d times", w.writes.Load())
	}
	b.cfg.Services = b.client.Services
	b.start()
	b.eventually(func() error {
		if local := b.services(); !local[id] {
			return fmt.Errorf("services %v, want %s as the name is held", local, id)
		}
		return nil
	})
}
