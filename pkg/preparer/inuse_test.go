package preparer_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

type sockets struct {
	mu    sync.Mutex
	held  []int
	err   error
	looks int
}

func (s *sockets) inUse(pods map[int]bool) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return slices.DeleteFunc(slices.Clone(s.held), func(port int) bool { return pods[port] }), s.err
}

func (s *sockets) set(err error, held ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.held = err, held
}

func (s *sockets) lookedAt() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

func (s *sockets) awaitLooks(b *bench, more int) {
	b.t.Helper()
	s.mu.Lock()
	want := s.looks + more + 1 // one look may be under way
	s.mu.Unlock()
	b.eventually(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.looks < want {
			return fmt.Errorf("%d looks, want %d", s.looks, want)
		}
		return nil
	})
}

// The node's record has the ports in use, except by pods. Ports of the first look are in it at once. Later, a port is
// added after two looks have found it, and removed after several have missed it. A pod's ports are left out while its
// processes may run.
func TestTheNodesRecordHasThePortsInUse(t *testing.T) {
	b := newBench(t)
	machine := &sockets{held: []int{80, 20000}}
	b.cfg.InUse, b.cfg.LookAtPorts = machine.inUse, 20*time.Millisecond
	b.start()
	says := func(want ...int) {
		t.Helper()
		b.awaitNode(fmt.Sprintf("ports %v in use", want), func(n node.Node, session string) bool {
			return session != "" && slices.Equal(n.PortsInUse, want)
		})
	}
	says(80, 20000)

	machine.set(nil, 80, 20000, 20001)
	says(80, 20000, 20001)
	machine.set(nil, 80, 20001)
	says(80, 20001)

	machine.set(errors.New("no such table"))
	b.awaitLog("the ports that are in use on this machine cannot be read")
	says(80, 20001) // unchanged

	machine.set(nil, 80, 20000)
	digest := b.upload(b.sleeper("1"))
	in := intent(0, digest, pod.Running, 1)
	in.Ports = map[string]int{"http": 20000}
	b.write(in)
	b.awaitReady(0, digest, 1)
	says(80)
	in.State, in.Revision = pod.Stopped, 2
	b.write(in)
	b.awaitState(0, pod.StateStopped, 2, "")
	says(80, 20000) // the pod does not use its port any more
}

// Unchanged ports, and one that a single look finds, are not written.
func TestPortsInUseAreWrittenOnlyWhenTheyChange(t *testing.T) {
	b := newBench(t)
	machine := &sockets{held: []int{80}}
	b.cfg.LookAtPorts = 10 * time.Millisecond
	b.cfg.InUse = func(pods map[int]bool) ([]int, error) {
		found, err := machine.inUse(pods)
		if machine.lookedAt()%2 == 0 {
			found = append(found, 20000+machine.lookedAt()) // for this look alone
		}
		return found, err
	}
	b.start()
	b.awaitServing()
	before, err := b.store.Node(t.Context(), b.cfg.Node.Name)
	if err != nil {
		t.Fatal(err)
	}
	machine.awaitLooks(b, 10)
	after, err := b.store.Node(t.Context(), b.cfg.Node.Name)
	if err != nil || after.Index != before.Index || !slices.Equal(after.Value.PortsInUse, []int{80}) {
		t.Errorf("the record was written again, %v: %+v", err, after.Value)
	}
	machine.set(nil)
	b.awaitNode("no port in use", func(n node.Node, _ string) bool { return len(n.PortsInUse) == 0 })
}

// A look that waits for a core on a busy machine does not delay the next.
func TestALookThatWaitsIsNoReasonToRest(t *testing.T) {
	b := newBench(t)
	machine := &sockets{held: []int{80}}
	b.cfg.LookAtPorts = 10 * time.Millisecond
	b.cfg.InUse = func(pods map[int]bool) ([]int, error) {
		<-time.After(300 * time.Millisecond)
		return machine.inUse(pods)
	}
	b.start()
	machine.awaitLooks(b, 3)
}
