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

// Gate is the record at gate: no field of a record is written that a later version brought (ADR 28).
type Gate struct {
	Version string    `json:"version"`
	By      string    `json:"by"` // the farm that raised it
	At      time.Time `json:"at"`
}

// PresentGate reads the gate. Where there is none, or it cannot be read, it is the oldest, at the index that it has.
func (s *Views) PresentGate(ctx context.Context) (Rec[Gate], error) {
	rec, err := s.Gate.Get(ctx, consul.Consistent)
	if errors.Is(err, ErrNotFound) || IsCorrupt(err) {
		err = nil
	}
	rec.Value.Version = feature.Counted(rec.Value.Version)
	return rec, err
}

// newGate returns the gate of a cluster without records.
func newGate(version string) Gate {
	return Gate{Version: version, By: "the first writer", At: time.Now().UTC().Truncate(time.Second)}
}

// firstGate returns the gate of a cluster without records: what this program emulates, as nothing is there that others have written. But it
// may be one that was wiped. Then other daemons live, and Consul's catalog tells what they emulate; where that cannot be read it is the oldest.
func (s *db) firstGate(ctx context.Context) Gate {
	living, err := s.passing(ctx)
	if err != nil {
		return newGate(feature.Oldest)
	}
	return newGate(feature.Next(feature.Oldest, append(living, feature.Writer{Emulates: s.guard.own()})))
}

// passing returns the daemons that pass in Consul's catalog, also those whose records were wiped.
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

// FirstRaise returns what a gate may be raised to at once that nobody has raised since an operator made it with the cluster's first records: what all emulate that live or
// pass in Consul's catalog. "": it is another one.
func (s *Leader) FirstRaise(ctx context.Context, gate Rec[Gate]) (string, error) {
	schema, err := s.Schema.Get(ctx, consul.Consistent)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && schema.Index != gate.Index: // they were not made together, or one has moved
		return "", nil
	case err != nil:
		return "", err
	}
	living, err := s.Writers(ctx)
	if err != nil {
		return "", err
	}
	passing, err := s.passing(ctx)
	if err != nil {
		return "", err
	}
	if to := feature.Next(gate.Value.Version, append(living, passing...)); feature.After(to, gate.Value.Version) {
		return to, nil
	}
	return "", nil
}

// raiseGate returns what makes the gate a version, if it is as it was read.
func (s *db) raiseGate(rec Rec[Gate], to, farmID string) []consul.Op {
	next := Gate{Version: to, By: farmID, At: time.Now().UTC().Truncate(time.Second)}
	line := "gate: " + rec.Value.Version + " -> " + to + ", as all farms and nodes that live write records of that version"
	return []consul.Op{cas(s.keys.Gate.Key(), next, rec.Index), s.audit(NewAudit(farmID, "raise-gate", "", []string{line}))}
}

// Writers are the farms and nodes that count as living: who holds the gate back, and whom it holds back. A node that nobody holds counts until
// nothing is left there and its machine is gone: pods of one that is only cut off run on, and its preparer comes back to them. A record that
// cannot be read counts as the oldest.
func (s *Agents) Writers(ctx context.Context) ([]feature.Writer, error) {
	farms, err := s.c.List(ctx, s.keys.Farms.Key(), consul.Default)
	if err != nil {
		return nil, err
	}
	nodes, err := s.c.List(ctx, s.keys.Nodes.Key(), consul.Default)
	if err != nil {
		return nil, err
	}
	gone, err := s.goneOf(ctx, freeAndOld(nodes))
	if err != nil {
		return nil, err
	}
	return writersOf(farms, nodes, gone), nil
}

// freeAndOld returns the machines of the nodes that nobody holds and that hold the gate back, by node. That of a node which does not say is none.
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

// goneOf returns which nodes, of those given with their machines, have nothing left, and are on machines that have failed, left, or are not known.
func (s *Agents) goneOf(ctx context.Context, free map[string]string) (map[string]bool, error) {
	gone := map[string]bool{}
	if len(free) == 0 {
		return gone, nil
	}
	left, err := s.LeftOn(ctx, slices.Collect(maps.Keys(free)))
	if err != nil {
		return nil, err
	}
	for name, l := range left {
		if !l.None() {
			continue
		}
		if gone[name], err = s.AgentGone(ctx, free[name]); err != nil {
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

// Writer returns a farm as one who writes records.
func (m *Member) Writer(id string) feature.Writer {
	return feature.Writer{Kind: "farm", Name: id, Version: m.Version, Emulates: m.EmulationVersion}
}

// NodeWriter returns a node as one who writes records.
func NodeWriter(name string, n *node.Node) feature.Writer {
	return feature.Writer{Kind: "node", Name: name, Version: n.Version, Emulates: n.EmulationVersion}
}

// guard makes every transaction depend on the gate, and keeps back what that does not allow. It knows the gate as it was when it last had to
// read it: whatever depends on another one is refused by Consul, and the guard reads again.
type guard struct {
	db     *db
	behind chan struct{} // closed when the gate was found above what this program emulates

	mu       sync.Mutex
	emulates string
	known    bool
	gate     Rec[Gate]
	read     time.Time
	silent   bool // the token may not ask whether there is no gate
}

// silentFor is for how long there is taken to be no gate by who may not have its transactions depend on that.
const silentFor = 10 * time.Second

func newGuard(d *db) *guard {
	return &guard{db: d, behind: make(chan struct{}), emulates: feature.Known.Newest()}
}

// present returns the gate, as last read, and how transactions depend on it.
func (g *guard) present(ctx context.Context) (gate Rec[Gate], silent bool, err error) {
	g.mu.Lock()
	gate, silent = g.gate, g.silent
	known := g.fresh()
	g.mu.Unlock()
	if !known {
		if gate, err = (&Views{g.db}).PresentGate(ctx); err != nil {
			return gate, silent, err
		}
		g.mu.Lock()
		g.gate, g.known, g.read = gate, true, time.Now()
		g.mu.Unlock()
	}
	return gate, silent, g.allows(gate.Value.Version)
}

// last returns the gate as last read, if it was.
func (g *guard) last() (version string, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gate.Value.Version, g.gate.Value.Version != ""
}

// allowed returns a record without what the gate does not allow, as far as it is known. What is said of itself by who writes it is left out
// so, in place of being refused.
func allowed[T any](g *guard, record *T) *T {
	version, known := g.last()
	if record == nil || !known || feature.NeedOf(record).Allowed(version) {
		return record
	}
	less := field.Copy(*record)
	feature.Without(version, &less)
	return &less
}

// fresh reports whether the gate as it is known is to be used. Where nothing depends on it nothing tells that it has moved.
func (g *guard) fresh() bool {
	return g.known && (!g.silent || g.gate.Index != 0 || time.Since(g.read) < silentFor)
}

// allows returns *feature.BehindError where this program is too old for a gate, which is read again the next time.
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

// presentFor is present for who needs something. A gate that does not allow it may have been raised.
func (g *guard) presentFor(ctx context.Context, need feature.Need) (gate Rec[Gate], silent bool, err error) {
	if gate, silent, err = g.present(ctx); err == nil && !need.Allowed(gate.Value.Version) {
		g.forget()
		return g.present(ctx)
	}
	return gate, silent, err
}

// leavesOut reports whether what a record needs must be left out of it, because the gate does not allow it.
func (g *guard) leavesOut(ctx context.Context, record any) bool {
	need := feature.NeedOf(record)
	gate, _, err := g.presentFor(ctx, need)
	return err == nil && !need.Allowed(gate.Value.Version)
}

// newest returns the newest of what operations need.
func newest(ops []consul.Op) (most feature.Need) {
	for i := range ops {
		if need, ok := ops[i].Need().(feature.Need); ok && !need.Zero() && (most.Zero() || feature.After(need.Since, most.Since)) {
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

// asUnsent is an error of reading the gate as one of the transaction that needs it: where another try may mend it, it was not sent yet.
func asUnsent(err error) error {
	if _, behind := errors.AsType[*feature.BehindError](err); behind || errors.Is(err, ErrFiltered) {
		return err
	}
	return consul.Unsent(err)
}

// closed says who holds back what somebody needs, as far as that can be read.
func (g *guard) closed(ctx context.Context, need feature.Need, gate string) error {
	living, err := (&Agents{g.db}).Writers(ctx)
	if err != nil {
		living = nil // it is refused all the same
	}
	return &feature.ClosedError{Need: need, Gate: gate, Behind: feature.Below(need.Since, living)}
}

// Refused implements consul.Guard. That a key is missing is something that only who may write it is told.
func (g *guard) Refused(f consul.Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known = false
	g.silent = g.silent || g.gate.Index == 0 && f.Denied()
}

// Emulate has this program write no records of a later version, and none where the gate is above it. It is for before the first write.
func (s *Store) Emulate(version string) {
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	s.guard.emulates = version
}

// Emulates returns what Emulate said, or the newest version that this program knows.
func (s *Store) Emulates() string { return s.guard.own() }

func (g *guard) own() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.emulates
}

// UntilBehind returns *feature.BehindError as soon as a write of this program was kept back because it is too old for the gate, or the
// context's cause.
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
