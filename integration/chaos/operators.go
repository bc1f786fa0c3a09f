package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (c *chaos) rcctl(ctx context.Context, args ...string) error {
	server := c.serverMachines[rand.IntN(servers)]
	cmd := exec.CommandContext(ctx, c.cfg.rcctl,
		append([]string{"--consul-addr", fmt.Sprintf("%s:%d", server.ip(), consulPort)}, args...)...)
	cmd.Env = append(os.Environ(), "CONSUL_HTTP_TOKEN="+managementToken)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("rcctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return err
}

const forceAfter = "1s"

// At most maxIneligible nodes are drained at a time.
func (w *workload) drain(ctx context.Context, rng *rand.Rand) (what string, err error) {
	name, force := w.c.nodes[rng.IntN(len(w.c.nodes))].Record.Name, rng.IntN(2) == 0
	return w.drainNode(ctx, name, force)
}

// drainNode drains a node, or ends its drain. If too many nodes are drained, it ends the drain of another one.
func (w *workload) drainNode(ctx context.Context, name string, force bool) (what string, err error) {
	w.mu.Lock()
	ineligible, room := w.ineligible[name], len(w.ineligible) < maxIneligible
	if !ineligible && !room {
		for other := range w.ineligible {
			name = min(name, other) // the choice is the same for the same seed
		}
		ineligible = true
	}
	if !ineligible {
		w.ineligible[name] = true // even if the outcome of the command is unknown
	}
	w.mu.Unlock()
	switch {
	case ineligible:
		if err := w.c.rcctl(ctx, "node", "undrain", name); err != nil {
			return "undrain", err
		}
		w.mu.Lock()
		delete(w.ineligible, name)
		w.mu.Unlock()
		return "undrain", nil
	case force:
		return "drain by force", w.c.rcctl(ctx, "node", "drain", name, "--deadline", forceAfter, "--force")
	default:
		return "drain", w.c.rcctl(ctx, "node", "drain", name)
	}
}

// relabel puts a node into the other rack, or back into its own.
func (w *workload) relabel(ctx context.Context, rng *rand.Rand) (what string, err error) {
	n := &w.c.nodes[rng.IntN(len(w.c.nodes))].Record
	name, label := n.Name, rackLabel+"="+map[string]string{"a": "b", "b": "a"}[n.Labels[rackLabel]]
	w.mu.Lock()
	labelled, room := w.labelled[name], len(w.labelled) < maxLabelled
	if !labelled && !room {
		for other := range w.labelled {
			name = min(name, other) // the choice is the same for the same seed
		}
		labelled = true
	}
	if !labelled {
		w.labelled[name] = true // even if the outcome of the command is unknown
	}
	w.mu.Unlock()
	if !labelled {
		return "relabel", w.c.rcctl(ctx, "label", "node", name, label)
	}
	if err := w.c.rcctl(ctx, "label", "node", name, rackLabel+"-"); err != nil {
		return "take a label back", err
	}
	w.mu.Lock()
	delete(w.labelled, name)
	w.mu.Unlock()
	return "take a label back", nil
}

func (w *workload) open(ctx context.Context) error {
	st := w.c.stores[rand.IntN(servers)]
	for _, n := range w.c.nodes {
		ops, err := st.NodeOps.Get(ctx, store.Consistent, n.Record.Name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			continue
		case err != nil:
			return err
		}
		if ops.Value.Drain != nil {
			err = w.c.rcctl(ctx, "node", "undrain", n.Record.Name)
		}
		if len(ops.Value.Labels) > 0 {
			err = errors.Join(err, w.c.rcctl(ctx, "label", "node", n.Record.Name, rackLabel+"-"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	breakerLook = 500 * time.Millisecond // between two looks
	finding     = time.Second            // to find out why it tripped, at least
	findingMore = 3 * time.Second        // and at most this much longer
)

// attend resets the breaker some seconds after each trip.
func (w *workload) attend(ctx context.Context, rng *rand.Rand) {
	for wait(ctx, breakerLook) {
		tripped, err := w.c.tripped(ctx)
		if err != nil || !tripped || !wait(ctx, finding+upTo(rng, findingMore)) {
			continue // what cannot be read now is read next time
		}
		w.c.acting.RLock()
		call, cancel := context.WithTimeout(ctx, callLimit)
		err = w.c.rcctl(call, "farm", "resume")
		cancel()
		w.c.acting.RUnlock()
		if ctx.Err() == nil {
			w.c.report.operation("resume", err)
		}
	}
}

func (c *chaos) tripped(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	b, err := c.stores[rand.IntN(servers)].Breaker.Get(ctx, store.Consistent)
	return err == nil && b.Value.Tripped, err
}

func (c *chaos) resume(ctx context.Context) error {
	tripped, err := c.tripped(ctx)
	if err != nil || !tripped {
		return err
	}
	return c.rcctl(ctx, "farm", "resume")
}

func (c *chaos) dead() []string {
	c.deadMu.Lock()
	defer c.deadMu.Unlock()
	return slices.Clone(c.deadNodes)
}

// forget declares a pod of a dead machine as gone.
func (w *workload) forget(ctx context.Context, st *store.Store, rng *rand.Rand) error {
	dead := w.c.dead()
	placed, _, err := st.Pods.List(ctx, store.Default) // spoilt placements are left out
	if err != nil {
		return err
	}
	rng.Shuffle(len(placed), func(i, j int) { placed[i], placed[j] = placed[j], placed[i] })
	for i := range placed {
		p := &placed[i].Value
		on := []string{p.Node}
		for _, g := range p.Ghosts {
			on = append(on, g.Node)
		}
		for _, name := range on {
			if slices.Contains(dead, name) {
				pod := fmt.Sprintf("%s-%s-%d", p.PodID, p.Role, p.Identity.Index)
				return w.c.rcctl(ctx, "pod", "forget", pod, "--rc", p.RCID, "--node", name, "--i-am-sure")
			}
		}
	}
	return nil // none was placed there
}

// No pod has the index firstLeaked or a higher one, so a claim of such a pod was leaked.
const firstLeaked = 900

// leak gives a claim to a pod that does not exist, as a defect could.
func (w *workload) leak(ctx context.Context, st *store.Store, of *rc.RC, rng *rand.Rand) error {
	name := w.c.nodes[rng.IntN(len(w.c.nodes))].Record.Name
	id := pod.Identity{RCID: of.ID, Role: rc.DefaultRole, Index: firstLeaked + rng.IntN(100)}
	found, unreadable, err := st.ReservationsOf(ctx, []string{name})
	if err = errors.Join(err, unreadable[name]); err != nil {
		return err
	}
	next := found[name].Value.Clone()
	_, leakedBefore := next.Claims[id.String()] // another port would look as if an owner had changed the claim
	port := freePort(next, rng)
	if port == 0 || len(next.Claims) >= slots || leakedBefore {
		return nil
	}
	next.Claims[id.String()] = node.NewClaim(id, map[string]int{"admin": port}, 0, 0)
	value, err := json.Marshal(next)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.leaky[name] = true
	w.mu.Unlock()
	w.c.events.write(checker.Event{Kind: checker.EventLeak, Node: name, ID: id.String()})
	_, err = w.c.client[0].Commit(ctx,
		[]consul.Op{consul.CAS(st.Keys().Reservations.Key(name), value, found[name].Index)})
	if errors.Is(err, consul.ErrRefused) {
		return nil // somebody else changed the reservation first
	}
	return err
}

// freePort returns an unclaimed dynamic port, or zero.
func freePort(res node.Reservation, rng *rand.Rand) int {
	var free []int
	for port := portMin; port <= portMax; port++ {
		taken := false
		for _, h := range res.Claims {
			taken = taken || slices.Contains(h.Ports, port)
		}
		if !taken {
			free = append(free, port)
		}
	}
	if len(free) == 0 {
		return 0
	}
	return free[rng.IntN(len(free))]
}

// sweep sweeps a node, if possible one with a leaked claim.
func (w *workload) sweep(ctx context.Context, rng *rand.Rand) error {
	name := w.c.nodes[rng.IntN(len(w.c.nodes))].Record.Name
	w.mu.Lock()
	if !w.leaky[name] {
		for other := range w.leaky {
			name = max(name, other)
		}
	}
	w.mu.Unlock()
	return w.c.rcctl(ctx, "node", "sweep", name)
}

// clean sweeps each node with a leaked claim, or with pods of a controller without a record, which a snapshot has if it
// was taken during a sweep.
func (w *workload) clean(ctx context.Context, st *store.Store) error {
	placed, _, err := st.Pods.List(ctx, store.Default)
	if err != nil {
		return err
	}
	ids, err := st.RCs.IDs(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	names := []string{}
	for name := range w.leaky {
		names = append(names, name)
	}
	w.mu.Unlock()
	for i := range placed {
		if p := &placed[i].Value; !slices.Contains(ids, p.RCID) && !slices.Contains(names, p.Node) {
			names = append(names, p.Node)
		}
	}
	for _, name := range names {
		if err := w.c.rcctl(ctx, "node", "sweep", name); err != nil {
			return err
		}
	}
	return nil
}

// unanswered returns an error while a request is not carried out. When it is gone, placements show how far the sweep of
// an orphan is.
func (c *chaos) unanswered(ctx context.Context) error {
	n := rand.IntN(servers)
	asked, err := c.client[n].List(ctx, c.stores[n].Keys().Requests.Key(), consul.Consistent)
	if err == nil && len(asked) > 0 {
		err = fmt.Errorf("%d requests, %s the first, are not carried out", len(asked), asked[0].Key)
	}
	return err
}

func (c *chaos) leaked(ctx context.Context, st *store.Store) error {
	all, corrupt, err := st.ListReservations(ctx)
	if err := errors.Join(append(corrupt, err)...); err != nil {
		return err
	}
	for name, res := range all {
		for id, h := range res.Claims {
			if h.Pod.Index >= firstLeaked {
				return errors.New(name + " still has a share for " + strconv.Quote(id))
			}
		}
	}
	return nil
}
