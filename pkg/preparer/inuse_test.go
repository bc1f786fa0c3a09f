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

// sockets are the ports that something holds on the machine of a test.
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

// awaitLooks waits until so many more looks are over.
func (s *sockets) awaitLooks(b *bench, more int) {
	b.t.Helper()
	s.mu.Lock()
	want := s.looks + more + 1 // one may be under way
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

// The record says which ports something else holds: at once when the preparer starts, later after two looks, and until some have not found it. Ports of pods are not among
// them, as long as something of the pods may run.
func TestTheRecordSaysWhichPortsAreInUse(t *testing.T) {
	b := newBench(t)
	machine := &sockets{held: []int{80, 20000}}
	b.cfg.InUse, b.cfg.LookAtPorts = machine.inUse, 20*time.Millisecond
	b.start()
	says := func(want ...int) {
		t.Helper()
		b.awaitNode(fmt.Sprintf("ports %v in use", want), func(n node.Node, session string) bool { return session != "" && slices.Equal(n.PortsInUse, want) })
	}
	says(80, 20000)

	machine.set(nil, 80, 20000, 20001)
	says(80, 20000, 20001)
	machine.set(nil, 80, 20001)
	says(80, 20001)

	machine.set(errors.New("no such table"))
	b.awaitLog("the ports that are in use on this machine cannot be read")
	says(80, 20001) // still

	machine.set(nil, 80, 20000)
	digest := b.upload(b.sleeper("1"))
	in := intent(0, digest, pod.Running, 1)
	in.Ports = map[string]int{"http": 20000}
	b.tell(in)
	b.awaitReady(0, digest, 1)
	says(80)
	in.State, in.Revision = pod.Stopped, 2
	b.tell(in)
	b.awaitState(0, pod.StateStopped, 2, "")
	says(80, 20000) // what holds it now is not the pod
}

// What does not change is not written again, and what comes and goes is not written at all.
func TestPortsInUseAreWrittenWhenTheyChange(t *testing.T) {
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
