package store

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// Gate is the record at gate. Programs write records without fields of versions later than this one (ADR 28).
type Gate struct {
	Version string    `json:"version"`
	By      string    `json:"by"` // the farm that raised it
	At      time.Time `json:"at"`
}

// ReadGate reads the gate. A missing or unreadable gate is the oldest version, at its index.
func (v *Views) ReadGate(ctx context.Context) (Rec[Gate], error) {
	rec, err := v.Gate.Get(ctx, consul.Consistent)
	if errors.Is(err, ErrNotFound) || IsCorrupt(err) {
		err = nil
	}
	rec.Value.Version = feature.Counted(rec.Value.Version)
	return rec, err
}

func newGate(version string) Gate {
	return Gate{Version: version, By: "the first writer", At: time.Now().UTC().Truncate(time.Second)}
}

// firstGate returns the gate of a cluster without records. The records may have been wiped while other daemons live, so
// it reads from Consul's catalog which versions they emulate. If it cannot read the catalog, the gate is the oldest
// version.
func (s *db) firstGate(ctx context.Context) Gate {
	living, err := s.passing(ctx)
	if err != nil {
		return newGate(feature.Oldest)
	}
	return newGate(feature.Next(feature.Oldest, append(living, feature.Writer{Emulates: s.guard.own()})))
}

// passing returns the daemons that pass in Consul's catalog, which has them even after a wipe.
func (s *db) passing(ctx context.Context) (living []feature.Writer, err error) {
	for _, kind := range []string{"farm", "preparer"} {
		metas, err := s.c.Catalog.Passing(ctx, consul.ServiceName(kind), prefixMeta, s.keys.Prefix())
		if err != nil {
			return nil, err
		}
		for _, meta := range metas {
			living = append(living, feature.Writer{Kind: kind, Emulates: meta[emulatesMeta]})
		}
	}
	return living, nil
}

// FirstRaise returns the version to which a new gate must be raised at once: the lowest that a living farm or node, or
// a daemon that passes in the catalog, emulates. A gate is new if an operator made it with the cluster's first records.
// For any other gate it returns "".
func (l *Leader) FirstRaise(ctx context.Context, gate Rec[Gate]) (string, error) {
	schema, err := l.Schema.Get(ctx, consul.Consistent)
	switch {
	// Schema and gate were not made in one transaction, or one has changed since.
	case errors.Is(err, ErrNotFound), err == nil && schema.Index != gate.Index:
		return "", nil
	case err != nil:
		return "", err
	}
	living, err := l.Writers(ctx)
	if err != nil {
		return "", err
	}
	passing, err := l.passing(ctx)
	if err != nil {
		return "", err
	}
	if to := feature.Next(gate.Value.Version, append(living, passing...)); feature.After(to, gate.Value.Version) {
		return to, nil
	}
	return "", nil
}

func (s *db) raiseGate(rec Rec[Gate], to, farmID string) []consul.Op {
	next := Gate{Version: to, By: farmID, At: time.Now().UTC().Truncate(time.Second)}
	line := "gate: " + rec.Value.Version + " -> " + to +
		", as all farms and nodes that live write records of that version"
	return []consul.Op{
		cas(s.keys.Gate.Key(), next, rec.Index),
		s.audit(NewAudit(farmID, "raise-gate", "", []string{line})),
	}
}

// Writers returns the living farms and nodes, which hold the gate back. A node without a preparer holds it back until
// it has no pods left and its machine is gone: if it is only cut off, its pods run on and its preparer will come back.
// The writer of an unreadable record is taken to emulate the oldest version.
func (a *Agents) Writers(ctx context.Context) ([]feature.Writer, error) {
	farms, err := a.c.List(ctx, a.keys.Farms.Key(), consul.Default)
	if err != nil {
		return nil, err
	}
	nodes, err := a.c.List(ctx, a.keys.Nodes.Key(), consul.Default)
	if err != nil {
		return nil, err
	}
	gone, err := a.goneOf(ctx, freeAndOld(nodes))
	if err != nil {
		return nil, err
	}
	return writersOf(farms, nodes, gone), nil
}

func freeAndOld(nodes []consul.Pair) map[string]string {
	free := map[string]string{}
	for _, p := range nodes {
		n := node.Node{}
		if p.Session != "" || json.Unmarshal(p.Value, &n) != nil || n.ConsulNode == "" {
			continue
		}
		if feature.After(feature.Known.Newest(), feature.Counted(n.EmulationVersion)) {
			free[path.Base(p.Key)] = n.ConsulNode
		}
	}
	return free
}

// goneOf returns the nodes without pods whose machine has failed, left, or is not known. free has the machines.
func (a *Agents) goneOf(ctx context.Context, free map[string]string) (map[string]bool, error) {
	gone := map[string]bool{}
	if len(free) == 0 {
		return gone, nil
	}
	left, err := a.LeftOn(ctx, slices.Collect(maps.Keys(free)))
	if err != nil {
		return nil, err
	}
	for name, l := range left {
		if !l.None() {
			continue
		}
		if gone[name], err = a.AgentGone(ctx, free[name]); err != nil {
			return nil, err
		}
	}
	return gone, nil
}

func writersOf(farms, nodes []consul.Pair, gone map[string]bool) []feature.Writer {
	var living []feature.Writer
	for _, p := range farms {
		if m := (Member{}); !strings.HasSuffix(p.Key, "/") {
			_ = json.Unmarshal(p.Value, &m)
			living = append(living, m.Writer(path.Base(p.Key)))
		}
	}
	for _, p := range nodes {
		if name := path.Base(p.Key); !strings.HasSuffix(p.Key, "/") && !gone[name] {
			n := node.Node{}
			_ = json.Unmarshal(p.Value, &n)
			living = append(living, NodeWriter(name, &n))
		}
	}
	return living
}

// Writer returns a farm as a writer of records.
func (m *Member) Writer(id string) feature.Writer {
	return feature.Writer{Kind: "farm", Name: id, Version: m.Version, Emulates: m.EmulationVersion}
}

// NodeWriter returns a node as a writer of records.
func NodeWriter(name string, n *node.Node) feature.Writer {
	return feature.Writer{Kind: "node", Name: name, Version: n.Version, Emulates: n.EmulationVersion}
}

// guard makes every transaction depend on the gate, and refuses fields that the gate forbids. If the gate has changed
// since it was read last, Consul refuses the transaction, and the guard reads the gate again.
type guard struct {
	db     *db
	behind chan struct{} // closed when the gate is above the version that this program emulates

	mu       sync.Mutex
	emulates string
	known    bool
	gate     Rec[Gate]
	read     time.Time
	silent   bool // the token is not allowed to use the condition that there is no gate
}

// silentFor is how long a silent guard assumes that there is no gate.
const silentFor = 10 * time.Second

func newGuard(d *db) *guard {
	return &guard{db: d, behind: make(chan struct{}), emulates: feature.Known.Newest()}
}

// present returns the gate as last read, and silent. Its error is of the read, or of allows.
func (g *guard) present(ctx context.Context) (gate Rec[Gate], silent bool, err error) {
	g.mu.Lock()
	gate, silent = g.gate, g.silent
	known := g.fresh()
	g.mu.Unlock()
	if !known {
		if gate, err = (&Views{g.db}).ReadGate(ctx); err != nil {
			return gate, silent, err
		}
		g.mu.Lock()
		g.gate, g.known, g.read = gate, true, time.Now()
		g.mu.Unlock()
	}
	return gate, silent, g.allows(gate.Value.Version)
}

// last returns the gate's version as last read. known is false if it was not read yet.
func (g *guard) last() (version string, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gate.Value.Version, g.gate.Value.Version != ""
}

// allowed returns a record without the fields that the gate forbids, as far as the gate is known. It is for records
// that daemons compute themselves, such as realities. For other records, the guard refuses the transaction.
func allowed[T any](g *guard, record *T) *T {
	version, known := g.last()
	if record == nil || !known || feature.NeedOf(record).Allowed(version) {
		return record
	}
	less := field.Copy(*record)
	feature.Without(version, &less)
	return &less
}

// fresh reports whether the known gate can be used. If transactions do not depend on the gate (see silent), no refusal
// shows that it has changed.
func (g *guard) fresh() bool {
	return g.known && (!g.silent || g.gate.Index != 0 || time.Since(g.read) < silentFor)
}

// allows returns *feature.BehindError if this program is too old for a gate. The next transaction reads it again.
func (g *guard) allows(version string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !feature.After(version, g.emulates) {
		return nil
	}
	g.known = false
	select {
	case <-g.behind:
	default:
		close(g.behind)
	}
	return &feature.BehindError{Emulates: g.emulates, Gate: version}
}

// Condition implements consul.Guard.
func (g *guard) Condition(ctx context.Context, ops []consul.Op) (consul.Op, bool, error) {
	need := newest(ops)
	gate, silent, err := g.presentFor(ctx, need)
	if err != nil {
		return consul.Op{}, false, asUnsent(err)
	}
	if !need.Allowed(gate.Value.Version) {
		return consul.Op{}, false, g.closed(ctx, need, gate.Value.Version)
	}
	key := g.db.keys.Gate.Key()
	if gate.Index == 0 {
		return consul.CheckMissing(key), !silent, nil
	}
	return consul.CheckIndex(key, gate.Index), true, nil
}

// presentFor is present. If the gate forbids the feature, presentFor reads it again, because it may have been raised.
func (g *guard) presentFor(ctx context.Context, need feature.Need) (gate Rec[Gate], silent bool, err error) {
	if gate, silent, err = g.present(ctx); err == nil && !need.Allowed(gate.Value.Version) {
		g.forget()
		return g.present(ctx)
	}
	return gate, silent, err
}

// leavesOut reports whether a record needs what the gate forbids, and must be written without it.
func (g *guard) leavesOut(ctx context.Context, record any) bool {
	need := feature.NeedOf(record)
	gate, _, err := g.presentFor(ctx, need)
	return err == nil && !need.Allowed(gate.Value.Version)
}

func newest(ops []consul.Op) (most feature.Need) {
	for i := range ops {
		if need, ok := ops[i].Need().(feature.Need); ok && !need.Zero() &&
			(most.Zero() || feature.After(need.Since, most.Since)) {
			most = need
		}
	}
	return most
}

func (g *guard) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known = false
}

// asUnsent marks an error about the gate as one of an unsent transaction, unless another try cannot help.
func asUnsent(err error) error {
	if _, behind := errors.AsType[*feature.BehindError](err); behind || errors.Is(err, ErrFiltered) {
		return err
	}
	return consul.Unsent(err)
}

func (g *guard) closed(ctx context.Context, need feature.Need, gate string) error {
	living, err := (&Agents{g.db}).Writers(ctx)
	if err != nil {
		living = nil // The transaction is refused even without these names.
	}
	return &feature.ClosedError{Need: need, Gate: gate, Behind: feature.Below(need.Since, living)}
}

// Refused implements consul.Guard. Consul checks that a key is missing only for a token that may write the key. So
// without a gate, a denied permission sets silent.
func (g *guard) Refused(f consul.Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known = false
	g.silent = g.silent || g.gate.Index == 0 && f.Denied()
}

// Emulate limits what this program writes to records of a version or earlier. Above that gate it writes nothing. Call
// it before the first write.
func (s *Store) Emulate(version string) {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	s.guard.emulates = version
}

// Emulates returns the emulated version; by default the newest one.
func (s *Store) Emulates() string { return s.guard.own() }

func (g *guard) own() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.emulates
}

// UntilBehind waits until a write is refused because this program is too old for the gate, and returns
// *feature.BehindError. It returns the context's cause if the context ends first.
func (s *Store) UntilBehind(ctx context.Context) error {
	select {
	case <-s.guard.behind:
		s.guard.mu.Lock()
		defer s.guard.mu.Unlock()
		return &feature.BehindError{Emulates: s.guard.emulates, Gate: s.guard.gate.Value.Version}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
