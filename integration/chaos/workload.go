package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// workload is the operators of a run.
type workload struct {
	c *chaos

	mu   sync.Mutex
	made map[int]int // controllers made so far, by slot
	// ineligible has the nodes that may be drained. leaky has the nodes that may have a leaked claim.
	ineligible, leaky map[string]bool
	labelled          map[string]bool // nodes that may have another label
}

const (
	operators     = 3
	slotCount     = 12  // controllers at a time, one in each slot; two slots share a static port
	maxReplicas   = 6   // of most controllers
	maxPods       = 300 // of large controllers: the nodes have capacity for two of these
	callLimit     = 10 * time.Second
	maxSurge      = 3                      // of controllers that do not use the default
	maxIneligible = 2                      // nodes that are drained at a time
	maxLabelled   = 4                      // nodes in another rack than their own at a time
	pauseLimit    = 600 * time.Millisecond // between two acts of one operator
)

// Only a few of the largest pods fit on a small node; see newSimulated.
const (
	someCPU    = 100       // thousandths of a core
	someMemory = 128 << 20 // bytes
	largeCPU   = 20        // of each pod of a large controller
)

// Faults last only seconds, so farms must replace pods soon.
const (
	lostAfter      = field.Duration(2 * time.Second)
	unmanagedAfter = field.Duration(4 * time.Second)
)

func newWorkload(c *chaos) *workload {
	return &workload{
		c: c, made: map[int]int{}, ineligible: map[string]bool{},
		leaky: map[string]bool{}, labelled: map[string]bool{},
	}
}

func (w *workload) initial(ctx context.Context) error {
	rng := newRand(w.c.cfg.seed, 3)
	st := w.c.stores[0]
	if _, err := st.EnsureSchema(ctx); err != nil {
		return err
	}
	for slot := range initialControl {
		if err := w.create(ctx, st, slot, rng, portOf(slot) != 0); err != nil {
			return fmt.Errorf("create the first controllers: %w", err)
		}
	}
	return nil
}

func (w *workload) start(ctx context.Context, group *errgroup.Group) {
	for i := range operators {
		rng := newRand(w.c.cfg.seed, 4+uint64(i))
		group.Go(func() error {
			for wait(ctx, upTo(rng, pauseLimit)) {
				w.c.acting.RLock()
				what, err := w.act(ctx, rng)
				w.c.acting.RUnlock()
				if ctx.Err() == nil {
					w.c.report.operation(what, err)
				}
			}
			return nil
		})
	}
	rng := newRand(w.c.cfg.seed, 8)
	group.Go(func() error { w.attend(ctx, rng); return nil })
}

// act does one thing to one slot, through one of the servers.
func (w *workload) act(ctx context.Context, rng *rand.Rand) (what string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	st := w.c.stores[rng.IntN(servers)]
	slot, dice := rng.IntN(slotCount), rng.IntN(100)
	n := rng.IntN(w.c.most(slot) + 1)
	rec, err := w.find(ctx, st, slot)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "create", w.create(ctx, st, slot, rng, false)
	case err != nil:
		return "read", err
	case rec.Value.DeletedAt != nil && rec.Value.AllowMassStop != rec.Value.Generation && dice < 20:
		// The breaker may delay the deletion: another operator allows its many stops.
		return "delete again", writeRC(ctx, st, rec, nil, "delete", true)
	case rec.Value.DeletedAt != nil:
		return "wait for a deletion", nil
	}
	if dice < 20 && len(w.c.dead()) > 0 {
		return "forget", w.forget(ctx, st, rng)
	}
	return w.actOn(ctx, st, rec, slot, dice, n, rng)
}

func (w *workload) actOn(ctx context.Context, st *store.Store, rec store.Rec[rc.RC], slot, dice,
	n int, rng *rand.Rand,
) (string, error) {
	// One after the other, hundreds of pods take too long.
	oneByOne := dice >= 50 && dice < 72 || dice >= 78 && dice < 82
	switch {
	case dice >= 46 && dice < 50:
		return w.relabel(ctx, rng)
	case dice < 50 && slot == eachSlot:
		return "scale", nil // this controller has no number of replicas
	case dice < 50, oneByOne && isLarge(slot):
		rec.Value.ReplicaGroups = w.c.groups(slot, n)
		return "scale", w.change(ctx, st, rec, nil, "scale", rng)
	case dice < 72:
		return "change manifest",
			w.change(ctx, st, rec, w.c.manifestOf(rec.Value.Name, slot, rng), "change manifest", rng)
	case dice < 78:
		return w.drain(ctx, rng)
	case dice < 82:
		rec.Value.NodeSelector = []string{"", rackLabel + "=a", rackLabel + "=b"}[rng.IntN(3)]
		return "change selector", w.change(ctx, st, rec, nil, "change selector", rng)
	case dice < 87:
		rec.Value.Disabled = !rec.Value.Disabled
		return fmt.Sprintf("disabled: %t", rec.Value.Disabled), w.change(ctx, st, rec, nil, "disable or enable", rng)
	case dice < 89:
		return "leak", w.leak(ctx, st, &rec.Value, rng)
	case dice < 92:
		return "sweep", w.sweep(ctx, rng)
	default:
		now := time.Now().UTC()
		rec.Value.DeletedAt = &now
		return "delete", w.change(ctx, st, rec, nil, "delete", rng)
	}
}

// Three changes out of four allow many stops. The others may trip the breaker.
func (w *workload) change(ctx context.Context, st *store.Store, rec store.Rec[rc.RC], m *manifest.Manifest,
	what string, rng *rand.Rand,
) error {
	if m != nil {
		canonical, err := m.Canonical()
		if err != nil {
			return err
		}
		w.c.resources.Store(manifest.Digest(canonical), m.Launchables[0].Resources)
		if most, stops := m.StopsItself(); stops {
			w.c.stopping.Store(manifest.Digest(canonical),
				[]time.Duration{m.Disconnect.StopAfter.Or(0), most + m.Grace()})
		}
	}
	return writeRC(ctx, st, rec, m, what, rng.IntN(4) > 0)
}

// hurry scales random controllers through all servers at once until the limit, and ignores failures.
func (c *chaos) hurry(ctx context.Context, rng *rand.Rand, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_ = c.resume(ctx) // while the breaker is tripped, farms have little to do
	recs, _, err := c.stores[rng.IntN(servers)].RCs.List(ctx, store.Default)
	recs = slices.DeleteFunc(recs, func(r store.Rec[rc.RC]) bool {
		// rollouts change these, or they have no number of replicas
		return r.Value.Service != nil || rc.IsPreDeploy(r.Value.ID) || r.Value.EachNode()
	})
	if err != nil || len(recs) == 0 {
		return
	}
	var all sync.WaitGroup
	for server := range servers {
		rng := newRand(rng.Int64(), 5)
		all.Go(func() {
			for ctx.Err() == nil {
				rec, err := c.stores[server].RCs.Get(ctx, store.Consistent, recs[rng.IntN(len(recs))].Value.ID)
				if err == nil && rec.Value.DeletedAt == nil {
					slot, _ := strconv.Atoi(rec.Value.Labels["slot"]) // as create wrote it
					rec.Value.ReplicaGroups = c.groups(slot, 1+rng.IntN(c.most(slot)))
					err = writeRC(ctx, c.stores[server], rec, nil, "scale", true)
				}
				if ctx.Err() == nil {
					c.report.operation("scale", err)
				}
				if err != nil {
					wait(ctx, 20*time.Millisecond) // the server is away
				}
			}
		})
	}
	all.Wait()
}

// find returns the controller of a slot. After a restore there may be two; find then returns the first by id.
func (w *workload) find(ctx context.Context, st *store.Store, slot int) (store.Rec[rc.RC], error) {
	recs, corrupt, err := st.RCs.List(ctx, store.Default)
	for _, r := range recs {
		if r.Value.Labels["slot"] == fmt.Sprint(slot) {
			return r, nil
		}
	}
	if err := errors.Join(append(corrupt, err)...); err != nil {
		return store.Rec[rc.RC]{}, err // the controller may be one of the spoilt records
	}
	return store.Rec[rc.RC]{}, store.ErrNotFound
}

// eachSlot has the controller with a pod on each matching node. They take no ports and no resources, because each can
// run on one node only.
const eachSlot = 3

// Controllers in large slots have many pods, which have no ports, because ports are few.
func isLarge(slot int) bool { return slot%4 == 3 && slot > 3 }

// A few slots have an ordered group, because its pods change one after the other, which takes long.
func (c *chaos) isOrdered(slot int) bool { return c.cfg.ordered && slot%3 == 2 && !isLarge(slot) }

func (c *chaos) stopsItself(slot int) bool { return c.isOrdered(slot) && slot%2 == 0 }

// How long pods that stop by themselves run without contact, and how long their stop takes. With the TTL of these runs,
// a farm waits for 37 s after the loss of their machine: the sum of docs/design/ordered-groups.md.
const (
	stopAfter = field.Duration(2 * time.Second)
	stopGrace = field.Duration(time.Second)
)

func (c *chaos) most(slot int) int {
	if isLarge(slot) {
		return max(maxReplicas, c.cfg.pods)
	}
	return maxReplicas
}

// Every third slot has two roles.
func (c *chaos) groups(slot, n int) []rc.ReplicaGroup {
	if slot%3 != 1 {
		return []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &n, Ordered: c.isOrdered(slot)}}
	}
	side := n / 2
	n -= side
	return []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &n}, {Role: "side", Count: &side}}
}

const teamLabel = "team"

// Two slots that share a static port are of one team.
func labelsOf(slot int) map[string]string {
	return map[string]string{"slot": fmt.Sprint(slot), teamLabel: "ab"[slot/4%2 : slot/4%2+1]}
}

// create makes the controller of a slot. If anywhere is true, it has no selector: before the first fault, pods with a
// static port need all nodes, because other pods may have the port on all nodes of a rack.
func (w *workload) create(ctx context.Context, st *store.Store, slot int, rng *rand.Rand, anywhere bool) error {
	w.mu.Lock()
	w.made[slot]++
	name := fmt.Sprintf("app-%d-%d", slot, w.made[slot])
	w.mu.Unlock()
	r := rc.RC{
		ID: store.NewID(), Name: name, Labels: labelsOf(slot), Strategy: rc.Dynamic,
		ReplicaGroups: w.c.groups(slot, 1+rng.IntN(w.c.most(slot))), MaxPerNode: []int{0, 1, 2}[rng.IntN(3)],
		NodeLoss:     rc.NodeLoss{After: new(lostAfter), UnmanagedAfter: new(unmanagedAfter)},
		MinAvailable: maybe(rng, maxReplicas+1), MaxSurge: maybe(rng, maxSurge+1),
	}
	if rng.IntN(4) == 0 {
		r.Strategy = rc.Static
	}
	if slot == eachSlot {
		r.Mode, r.Strategy, r.ReplicaGroups, r.MaxPerNode, r.MaxSurge, r.NodeLoss = rc.EachNode,
			rc.Dynamic, nil, 0, nil, rc.NodeLoss{}
	}
	if isLarge(slot) {
		r.MaxPerNode = 0
	} else {
		r.NodeSelector = []string{"", "", rackLabel + "=a", rackLabel + "=b"}[rng.IntN(4)]
	}
	if anywhere {
		r.NodeSelector = ""
	}
	return w.change(ctx, st, store.Rec[rc.RC]{Value: r}, w.c.manifestOf(name, slot, rng), "create", rng)
}

// maybe returns a number below the limit, or nothing for the default.
func maybe(rng *rand.Rand, limit int) *int {
	if n := rng.IntN(limit); rng.IntN(2) == 0 {
		return &n
	}
	return nil
}

func portOf(slot int) int {
	if slot%4 == 3 {
		return 0
	}
	return 8000 + slot/2
}

// staticPort returns zero for services, whose controllers are in no slot.
func staticPort(r *rc.RC) int {
	slot, err := strconv.Atoi(r.Labels["slot"])
	if err != nil {
		return 0
	}
	return portOf(slot)
}

// manifestOf returns a manifest that differs from earlier ones. Two slots share each static port. A quarter of the
// slots also have dynamic ports, some only in some versions, and a quarter have no ports.
func (c *chaos) manifestOf(name string, slot int, rng *rand.Rand) *manifest.Manifest {
	var ports []manifest.Port
	if port := portOf(slot); port != 0 {
		ports = append(ports, manifest.Port{Name: "http", Port: port})
	}
	if slot%4 >= 2 && !isLarge(slot) && slot != eachSlot {
		ports = append(ports, manifest.Port{Name: "admin", Dynamic: true})
		if rng.IntN(2) == 0 {
			ports = append(ports, manifest.Port{Name: fmt.Sprintf("extra-%d", rng.IntN(2)), Dynamic: true})
		}
	}
	// All versions of a controller take the same CPU and memory. A larger version might not fit on its pods' nodes, and
	// would wait for an operator for ever.
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name)) // never fails (hash.Hash)
	much := hash.Sum32()
	takes := manifest.Resources{
		CPU:    manifest.Millicores(much%4) * someCPU,
		Memory: manifest.Bytes(much/4%4) * someMemory,
	}
	switch {
	case isLarge(slot):
		takes = manifest.Resources{CPU: largeCPU}
	case slot == eachSlot:
		takes = manifest.Resources{}
	}
	m := &manifest.Manifest{
		Version: manifest.Version, ID: name, MinReady: new(field.Duration),
		Launchables: []manifest.Launchable{{
			Name: "main", Resources: takes,
			Artifact: manifest.Artifact{
				Kind: manifest.ArtifactTar, URL: "file:///nowhere.tar.gz",
				SHA256: fmt.Sprintf("%064x", rng.Uint64()),
			},
		}},
		Ports: ports,
	}
	if c.stopsItself(slot) {
		m.Disconnect = &manifest.Disconnect{StopAfter: new(stopAfter)}
		// an artifact without bin/disable, for which a stop would wait
		m.Launchables[0].Artifact = manifest.Artifact{
			Kind: manifest.ArtifactExec,
			Path: fmt.Sprintf("/nowhere/%d", rng.Uint64()),
		}
		m.Launchables[0].StopGrace = new(stopGrace)
	}
	return m
}

// writeRC ignores that another operator was first.
func writeRC(ctx context.Context, st *store.Store, rec store.Rec[rc.RC], m *manifest.Manifest,
	what string, allowMassStop bool,
) error {
	change := store.RCChange{RC: rec.Value, Index: rec.Index}
	change.RC.Generation++
	change.RC.ChangedBy = "chaos"
	change.RC.AllowMassStop = 0
	if allowMassStop {
		change.RC.AllowMassStop = change.RC.Generation
	}
	if m != nil {
		canonical, err := m.Canonical()
		if err != nil {
			return err
		}
		change.RC.ManifestDigest = manifest.Digest(canonical)
		change.Manifests = []store.DeployManifest{{Digest: change.RC.ManifestDigest, Canonical: canonical}}
	}
	// Without a farm and a controller, the checker does not judge this as a farm's write.
	change.Audit = store.NewAudit("operator", what, "", nil)
	if err := st.Operator.ChangeRC(ctx, change); err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	return nil
}

// sayAgain cleans up after the faults. It writes each controller anew and enables it, as an operator does after a
// restore, because pods are kept as adopted until then (R2). Each change allows many stops, because otherwise those
// that the breaker prevented would trip it again.
func (w *workload) sayAgain(ctx context.Context) error {
	said := map[string]bool{}
	for {
		err := w.c.mend(ctx)
		if err == nil {
			err = w.open(ctx)
		}
		if err == nil {
			err = w.sayOnce(ctx, said)
		}
		if err == nil {
			err = w.c.resume(ctx)
		}
		if err == nil {
			err = w.clean(ctx, w.c.stores[rand.IntN(servers)])
		}
		if err == nil {
			return nil
		}
		if !wait(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// addLast creates a controller with one pod, so that every run places a pod after its last fault, also after a late
// restore.
func (w *workload) addLast(ctx context.Context) error {
	const name = "last"
	slot := 2*slotCount - 1 // a slot of no operator, whose pods are small and have no ports
	rng := newRand(w.c.cfg.seed, 10)
	r := rc.RC{
		ID: store.NewID(), Name: name, Labels: labelsOf(slot), Strategy: rc.Dynamic,
		ReplicaGroups: w.c.groups(slot, 1),
		NodeLoss:      rc.NodeLoss{After: new(lostAfter), UnmanagedAfter: new(unmanagedAfter)},
	}
	m := w.c.manifestOf(name, slot, rng)
	return cluster.Until(ctx, func() error {
		call, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		st := w.c.stores[rand.IntN(servers)]
		if _, err := w.find(call, st, slot); !errors.Is(err, store.ErrNotFound) {
			return err
		}
		return w.change(call, st, store.Rec[rc.RC]{Value: r}, m, "create", rng)
	})
}

func (w *workload) sayOnce(ctx context.Context, said map[string]bool) error {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	st := w.c.stores[rand.IntN(servers)]
	recs, corrupt, err := st.RCs.List(call, store.Default)
	if err := errors.Join(append(corrupt, err)...); err != nil {
		return err
	}
	for _, r := range recs {
		if said[r.Value.ID] {
			continue
		}
		if rolls, err := st.Deployments.RolloutFor(call, &r.Value); err != nil {
			return err
		} else if rolls != nil {
			continue // a rollout writes its controllers itself
		}
		r.Value.Disabled = false
		if staticPort(&r.Value) != 0 {
			// with a selector its pods might wait for ever: other pods may have the port on half of the nodes
			r.Value.NodeSelector = ""
		}
		if least := r.Value.MinAvailable; least != nil && (*least >= r.Value.Desired() || r.Value.EachNode()) {
			r.Value.MinAvailable = nil // this minimum may block the changes that are left, as a status reports
		}
		if err := writeRC(call, st, r, nil, "apply again", true); err != nil {
			return err
		}
		said[r.Value.ID] = true
	}
	return nil
}

// sayAgainWhereFound writes those controllers anew whose pods were adopted, because some pods may have been adopted
// after sayAgain wrote their controller.
func (w *workload) sayAgainWhereFound(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	st := w.c.stores[rand.IntN(servers)]
	statuses, _, err := st.Statuses.List(call, store.Default)
	if err != nil {
		return err
	}
	for _, s := range statuses {
		if !s.Value.Is(rc.Regressed) {
			continue
		}
		rec, err := st.RCs.Get(call, store.Consistent, s.Value.RCID)
		if err != nil {
			return err
		}
		if rec.Value.Generation != s.Value.ObservedGeneration || rec.Value.DeletedAt != nil {
			continue // the owner has not seen the last change yet
		}
		if rolls, err := st.Deployments.RolloutFor(call, &rec.Value); err != nil {
			return err
		} else if rolls != nil {
			continue
		}
		if err := writeRC(call, st, rec, nil, "apply again", true); err != nil {
			return err
		}
	}
	return nil
}
