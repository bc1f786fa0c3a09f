package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

type events struct {
	mu   sync.Mutex
	file *os.File
	err  error // all errors so far
}

func (e *events) write(ev checker.Event) {
	data, err := json.Marshal(ev)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		_, err = e.file.Write(append(data, '\n'))
	}
	e.err = errors.Join(e.err, err)
}

// simulated is a node that writes events, can be halted and resumed, and whose pods may have trouble.
type simulated struct {
	simnode.Node
	host    string // name of its machine
	trouble *trouble

	mu     sync.Mutex
	cancel context.CancelFunc // ends its preparer
	halted chan struct{}      // closed when its preparer has ended because of halt
	next   chan func(context.Context) error
}

// Every tenth node is small.
const (
	slots      = 60
	cores      = 4000    // thousandths
	memory     = 4 << 30 // bytes
	smallCores = 500
	smallSize  = 512 << 20
)

// A small range, so that numbers are used again.
const (
	portMin = 20_000
	portMax = portMin + 24
)

const rackLabel = "rack"

// reactLimit is the longest time until a pod has started or stopped; meanwhile it is not available.
const reactLimit = 150 * time.Millisecond

// Farms push to every third node. If a fault prevents a push, the node must read its intents in time for the run to
// converge.
const (
	toldOf    = 3
	toldEvery = 8 * time.Second
)

func newSimulated(c *chaos, m *machine, n int, keys *store.Keys) (*simulated, error) {
	const connsPerPreparer = 6 // P8
	client, err := connect(m, connsPerPreparer)
	if err != nil {
		return nil, err
	}
	capacity := node.Capacity{Slots: slots, CPU: cores, Memory: memory}
	if n%10 == 2 {
		capacity.CPU, capacity.Memory = smallCores, smallSize
	}
	s := &simulated{
		Node: simnode.Node{
			Record: node.Node{
				Name: fmt.Sprintf("n%d", n+1), Labels: map[string]string{rackLabel: string("ab"[n%2])},
				Capacity: capacity, PortRange: node.PortRange{Min: portMin, Max: portMax}, Address: m.ip(),
			},
			Client: client, Store: store.New(client, keys), TTL: c.cfg.ttl,
		},
		host: m.name, trouble: newTrouble(c.cfg.seed, n, c.neverRuns), next: make(chan func(context.Context) error),
	}
	if n%toldOf == 1 {
		s.Told = &simnode.Told{
			Credentials: c.credentials, Dir: filepath.Join(c.cfg.dir, "told"), Addr: m.ip() + ":0", Every: toldEvery,
			Open: m.inside, OnTaken: c.report.told,
		}
	}
	s.Record.EnforcesStopAfter, s.Record.TTL = true, field.Duration(c.cfg.ttl)
	s.Takes, s.StopsAfter = c.takes, c.stopsAfter
	name := s.Record.Name
	s.OnStopped = func(in pod.Intent, silent time.Time) {
		c.events.write(checker.Event{
			At: time.Now().UnixNano(), Call: silent.UnixNano(), Kind: checker.EventSelf, Node: name,
			ID: in.Identity.String(), Digest: in.Digest, Revision: in.Revision,
		})
	}
	s.React = func(in pod.Intent) pod.Reality {
		<-time.After(rand.N(reactLimit)) // it takes time to start a pod
		c.events.write(checker.Event{
			At: time.Now().UnixNano(), Kind: checker.EventNode, Node: name, ID: in.Identity.String(),
			State: string(in.State), Digest: in.Digest, Revision: in.Revision, Ports: in.Ports, Once: runsOnce(in),
		})
		return s.trouble.start(&s.Node, in)
	}
	return s, nil
}

// run simulates the node until ctx ends, and while halted waits for resume.
func (s *simulated) run(ctx context.Context) error {
	start := s.Run
	for {
		living, cancel := context.WithCancel(ctx)
		halted := make(chan struct{})
		s.mu.Lock()
		s.cancel, s.halted = cancel, halted
		s.mu.Unlock()
		err := start(living)
		cancel()
		close(halted)
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("node %s: %w", s.Record.Name, err)
		}
		select {
		case start = <-s.next:
		case <-ctx.Done():
			return nil
		}
	}
}

// halt ends the node's preparer, but not its pods.
func (s *simulated) halt() {
	s.mu.Lock()
	cancel, halted := s.cancel, s.halted
	s.mu.Unlock()
	cancel()
	<-halted
}

// resume starts a halted preparer by Run or Resume of the node.
func (s *simulated) resume(ctx context.Context, how func(context.Context) error) error {
	select {
	case s.next <- how:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("node %s is not halted: %w", s.Record.Name, context.Cause(ctx))
	}
}

func (c *chaos) takes(digest string) manifest.Resources {
	r, _ := c.resources.Load(digest)
	takes, _ := r.(manifest.Resources)
	return takes
}

// stopsAfter is the shortest possible time for every second manifest, as if the preparer lived and were quick, and for
// others the longest, as if it were dead and the pod had to be killed.
func (c *chaos) stopsAfter(digest string) (time.Duration, bool) {
	m, _ := c.stopping.Load(digest)
	stops, _ := m.([]time.Duration)
	if len(stops) == 0 {
		return 0, false
	}
	return stops[int(digest[0])%len(stops)], true
}

func (c *chaos) neverRuns(digest string) bool {
	_, broken := c.broken.Load(digest)
	return broken
}

func (s *simulated) atEnd(out *events) error {
	for id, in := range s.Running() {
		out.write(checker.Event{
			At: time.Now().UnixNano(), Kind: checker.EventEnd, Node: s.Record.Name, ID: id.String(),
			State: string(in.State), Digest: in.Digest, Revision: in.Revision, Ports: in.Ports,
		})
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	return out.err
}

// converged returns an error while statuses or nodes differ from what the controllers desire.
func (c *chaos) converged(ctx context.Context) error {
	st := c.stores[rand.IntN(servers)]
	recs, corrupt, err := st.RCs.List(ctx, store.Default)
	if err := errors.Join(append(corrupt, err)...); err != nil {
		return err
	}
	statuses, _, err := st.Statuses.List(ctx, store.Default)
	if err != nil {
		return err
	}
	byID := map[string]rc.Status{}
	for _, s := range statuses {
		byID[s.Value.RCID] = s.Value
	}
	if err := c.unanswered(ctx); err != nil {
		return err
	}
	if err := c.leaked(ctx, st); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, r := range recs {
		known[r.Value.ID] = true
		s := byID[r.Value.ID]
		switch {
		case r.Value.DeletedAt != nil:
			return fmt.Errorf("controller %s is not deleted yet: %+v", r.Value.Name, s)
		case s.ObservedGeneration != r.Value.Generation || !s.Is(rc.Converged):
			return fmt.Errorf("controller %s at generation %d: %+v", r.Value.Name, r.Value.Generation, s)
		}
	}
	return c.realitiesMatch(ctx, st, known)
}

func (c *chaos) realitiesMatch(ctx context.Context, st *store.Store, known map[string]bool) error {
	placed, corrupt, err := st.Pods.List(ctx, store.Default)
	if err := errors.Join(append(corrupt, err)...); err != nil {
		return err
	}
	want := map[string]string{}
	for _, p := range placed {
		want[p.Value.Identity.String()+"@"+p.Value.Node] = p.Value.Digest
	}
	for _, n := range c.nodes {
		for id, in := range n.Running() {
			key := id.String() + "@" + n.Record.Name
			digest, ok := want[key]
			if !known[id.RCID] {
				continue // an orphan of a controller that a restored snapshot does not have
			}
			if !ok || digest != in.Digest {
				return fmt.Errorf("%s runs with %.8s, placed with %.8s", key, in.Digest, digest)
			}
			delete(want, key)
		}
	}
	for key := range want {
		return fmt.Errorf("%s is placed and does not run", key)
	}
	return nil
}
