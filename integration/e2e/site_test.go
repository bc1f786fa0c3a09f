package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// siteLost: thousands of nodes are lost at once, and each had a pod of one controller. All pods are replaced on the
// nodes that are left. Status, log and alert are short, because a status with the names of all nodes would not fit into
// a transaction.
func siteLost(e *env) {
	const lost, left = 5000, 100
	e.startConsul("")
	_, err := e.store.EnsureSchema(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	machine, addr := e.agent(1)
	site := strings.Repeat("frankfurt-", 5) + "hall" // the names of large sites are long
	e.fleet(addr, simnode.Fleet{Name: site, Size: lost})
	farm := e.farm("f1", "")
	// It is long enough for the farm to know all lost machines before it replaces the first pod. Otherwise the pods of
	// the machines that it knows first may all be replaced before it knows the others, which is a second incident.
	after := field.Duration(2 * time.Second)
	id := e.writeRC("everywhere", lost, func(r *rc.RC) { r.NodeLoss.After = &after })
	available := func() error {
		st, err := e.client.Get(e.t.Context(), e.store.Keys().Statuses.Key(id), consul.Default)
		if len(st.Value) > rc.MaxStatusBytes {
			e.t.Fatalf("the status takes %d bytes, allowed %d", len(st.Value), rc.MaxStatusBytes)
		}
		return errors.Join(err, e.availableAll(id, lost))
	}
	e.within(2*limit, available)
	e.fleet("", simnode.Fleet{Name: "left", Size: left})
	e.within(limit, func() error {
		if n := len(e.nodes()); n < lost+left {
			return fmt.Errorf("%d nodes", n)
		}
		return nil
	})
	machine.kill()
	e.within(limit, func() error {
		if !e.agentFailed("machine-1") {
			return errors.New("gossip has not found out")
		}
		return nil
	})
	seen := time.Now()
	e.within(2*limit, func() error {
		for _, p := range e.placements(id) {
			if !strings.HasPrefix(p.Value.Node, "left-") {
				return fmt.Errorf("%s.%d is on %s", p.Value.Role, p.Value.Identity.Index, p.Value.Node)
			}
		}
		return nil
	})
	e.within(limit, available)
	e.t.Logf("%d pods were replaced %s after gossip had seen the loss", lost, time.Since(seen).Round(time.Millisecond))
	told := 0
	for line := range strings.Lines(farm.logText()) {
		if len(line) > 4096 {
			e.t.Errorf("a line of %d bytes in the farm's log: %.200s", len(line), line)
		}
		if strings.Contains(line, "alert raised") && strings.Contains(line, "condition=NodeLost") {
			told++
		}
	}
	if told != 1 {
		e.t.Errorf("the loss was alerted %d times", told)
	}
}

// fleet simulates nodes at an agent until the scenario ends; an empty addr is the scenario's. Their errors are ignored,
// because the agent may die.
func (e *env) fleet(addr string, f simnode.Fleet) {
	e.t.Helper()
	if addr == "" {
		addr = e.consul.Addr
	}
	client, err := consul.New(consul.Config{Address: addr, CallTimeout: limit})
	if err != nil {
		e.t.Fatal(err)
	}
	ready := make(chan struct{})
	// a long TTL, so that the agent's health alone decides
	f.Client, f.Store, f.TTL = client, store.New(client, e.store.Keys()), time.Minute
	var once sync.Once
	f.OnReady = func() { once.Do(func() { close(ready) }) } // OnReady is called in each tenure
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	e.t.Cleanup(func() {
		cancel()
		<-done
		client.Close()
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		e.t.Fatalf("fleet %s: %v", f.Name, err)
	}
}
