package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// NodeSession has a preparer's writes while its session holds its node's lock.
type NodeSession struct {
	*db
	*Watches
	sess *consul.Session
	name string

	orphans orphanPages

	mu    sync.Mutex
	drops map[string]counter // by unit; those that were read or written
}

// NodeSession returns the writer for a node under a session. Call AcquireNode before other writes.
func (s *Store) NodeSession(sess *consul.Session, name string) *NodeSession {
	return &NodeSession{db: s.db, Watches: s.Watches, sess: sess, name: name, drops: map[string]counter{}}
}

// Left returns how long the session is still valid; see consul.Session.
func (t *NodeSession) Left() time.Duration { return t.sess.Left() }

// NameConflictError means that a node's name belongs to another machine or data directory.
type NameConflictError struct {
	Record node.Node // the record in Consul
	Writer node.Node // the record that was to be written
	Key    string    // of the record
}

// Error names the owner and what to do.
func (n *NameConflictError) Error() string {
	next := "give one of the two another name with --node; or, once nothing of the other's pods runs any more, start " +
		"this preparer once with " +
		"--take-over-name, or remove the key " + n.Key
	if n.Record.Host == n.Writer.Host {
		next = "if this data directory is a copy, start with an empty one and another name; if this machine's agent " +
			"was renamed, start this preparer once with --take-over-name"
	}
	return fmt.Sprintf("node name %s belongs to %s, and this is %s; what to do next: %s", n.Record.Name,
		hostText(n.Record), hostText(n.Writer), next)
}

func hostText(n node.Node) string {
	host := n.Host
	if host == "" {
		host = "without an id"
	}
	return fmt.Sprintf("host %s (Consul agent %q, address %s)", host, n.ConsulNode, n.Address)
}

// AcquireNode takes the node's lock and writes its record, also if the session holds the lock already. It sets
// Incarnation, ConsulNode and EmulationVersion, and leaves out fields that the gate forbids.
//
// It returns *NameConflictError if the name belongs to another host, even if that host does not hold the lock. But it
// takes the name if that host's agent is gone, if takeOver is set, or if the record is missing or unreadable. It
// returns *consul.LockedError if another session has the lock, and ErrLost if the session is dead.
//
// If the labels changed, the reservation gets their version in the same transaction (ADR 12), unless the token may not
// write the reservation.
func (t *NodeSession) AcquireNode(ctx context.Context, n node.Node, takeOver bool) error {
	if _, _, err := t.guard.present(ctx); err != nil {
		return fmt.Errorf("read the gate: %w", err)
	}
	sent := time.Now()
	n.Incarnation, n.ConsulNode, n.EmulationVersion = t.sess.Incarnation, t.sess.ConsulNode, t.guard.own()
	n = t.Allowed(n)
	own := lock(t.keys.Nodes.Key(t.name), n, t.sess.Releasing)
	const withLabels, withoutLabels = true, false
	take := func(labels bool) error {
		return t.c.Locks.AcquireIf(ctx, own, func(present consul.Pair) ([]consul.Op, error) {
			before, unreadable := t.Nodes.decode(present)
			if unreadable == nil && present.Session != t.sess.Releasing && !takeOver {
				if err := t.mayTake(ctx, before.Value, n); err != nil {
					return nil, err
				}
			}
			if !labels || unreadable == nil && maps.Equal(before.Value.Labels, n.Labels) {
				return nil, nil
			}
			return t.labelVersionOps(ctx, n.Labels, present.ModifyIndex != 0)
		})
	}
	err := take(withLabels)
	if Denied(err) && consul.RefusedOn(err, t.keys.Reservations.Key(t.name)) {
		err = take(withoutLabels)
	}
	return t.sess.Answered(sent, err)
}

// Allowed drops the fields that the gate forbids. Before the first write the gate is not known, and n is unchanged.
func (t *NodeSession) Allowed(n node.Node) node.Node {
	return *allowed(t.guard, &n)
}

// GateVersion returns the known gate, "" before the first write. If the gate is below the version that this program
// emulates, GateVersion reads it again, because the node's record lacks fields until it is raised.
func (t *NodeSession) GateVersion(ctx context.Context) string {
	version, known := t.guard.last()
	if !known || !feature.After(t.guard.own(), version) {
		return version
	}
	t.guard.forget()
	if gate, _, err := t.guard.present(ctx); err == nil {
		return gate.Value.Version
	}
	return version
}

func (t *NodeSession) mayTake(ctx context.Context, before, n node.Node) error {
	if !before.NameConflict(n) {
		return nil
	}
	if before.ConsulNode != "" {
		if gone, err := t.c.Catalog.AgentGone(ctx, before.ConsulNode); gone || err != nil {
			return err
		}
	}
	return &NameConflictError{Record: before, Writer: n, Key: t.keys.Nodes.Key(t.name)}
}

// labelVersionOps writes the node's label version into its reservation, so that no farm with older labels can place
// pods there. If the reservation is missing, such a farm could make it with an older version. So for a node that had a
// record before (known), the operations make it.
func (t *NodeSession) labelVersionOps(ctx context.Context, labels map[string]string, known bool) ([]consul.Op, error) {
	key := t.keys.Reservations.Key(t.name)
	rec, err := t.Reservations.Get(ctx, consul.Consistent, t.name)
	switch {
	// Farms place no pods on a node whose reservation is corrupt.
	case errors.Is(err, ErrFiltered), errors.Is(err, ErrNotFound) && !known, IsCorrupt(err):
		return nil, nil
	case err != nil && !errors.Is(err, ErrNotFound):
		return nil, err
	}
	version := node.LabelVersion(labels)
	if rec.Value.Labels.Own == version {
		return nil, nil
	}
	res := rec.Value.Clone()
	res.Labels.Own = version
	return []consul.Op{cas(key, res, rec.Index)}, nil
}

// LockedBy returns the session that holds the lock, for *consul.LockedError.
func LockedBy(err error) (session string, ok bool) {
	if locked, ok := errors.AsType[*consul.LockedError](err); ok {
		return locked.Session, true
	}
	return "", false
}

// RealityWrite is a reality to write.
type RealityWrite struct {
	Reality pod.Reality
	// Index is the record's index when it was last read or written, zero: none. It keeps a delayed write from replacing
	// a later one. Before is the content at Index. For an unreadable record, the caller sets Before to an available
	// reality.
	Index  uint64
	Before pod.Reality
	// StopIndex is the index of the pod's intent if that is `stopped` or `standby`, else zero.
	StopIndex uint64
}

// MaxRealities is how many realities fit into one transaction if each rings another bell.
const MaxRealities = (consul.MaxTxnOps - 1) / 2

// Together returns how many writes, from the first on, fit into one transaction.
func Together(writes []RealityWrite) int {
	ops := 1 // the fence
	rung, dropped := map[string]bool{}, map[string]bool{}
	for i := range writes {
		w, id := &writes[i], rc.UnitOf(writes[i].Reality.RCID)
		ops++
		if !rung[id] {
			rung[id] = true
			ops++
		}
		switch {
		case !w.drops():
		case w.StopIndex != 0:
			ops++
		case !dropped[id]:
			dropped[id] = true
			ops += 3 // the unit's key and the counter, and a delete if the counter cannot be read
		}
		if ops > consul.MaxTxnOps || i == MaxRealities {
			return i
		}
	}
	return len(writes)
}

// WriteRealities writes realities of different pods, as many as Together allows, rings their units' bells, and counts
// drops. It leaves out fields that the gate forbids. All these realities get the new index. Its errors are:
//   - ErrConflict: a record or a counter has changed;
//   - ErrLost: the lock is not held;
//   - consul.ErrTooLarge: the realities do not fit together;
//   - ErrUnknown: the records must be read again.
func (t *NodeSession) WriteRealities(ctx context.Context, writes ...RealityWrite) (index uint64, err error) {
	var ops []consul.Op
	var ids []string
	for _, w := range writes {
		ops = append(ops,
			cas(t.keys.Realities.Key(t.name, w.Reality.Identity.String()), *allowed(t.guard, &w.Reality), w.Index))
		if !w.Reality.Local() {
			ids = append(ids, w.Reality.RCID)
		}
	}
	ops = append(ops, t.rings(ids...)...)
	written, err := t.report(ctx, writes, ops)
	return written[t.keys.Realities.Key(t.name, writes[0].Reality.Identity.String())], err
}

// DeleteReality removes a reality. before is its content. Its errors are those that WriteRealities returns.
func (t *NodeSession) DeleteReality(ctx context.Context, before pod.Reality, id pod.Identity, index uint64) error {
	w := RealityWrite{Reality: pod.Reality{Identity: id}, Index: index, Before: before}
	_, err := t.report(ctx, []RealityWrite{w},
		[]consul.Op{consul.DeleteCAS(t.keys.Realities.Key(t.name, id.String()), index)})
	return err
}

func (t *NodeSession) report(ctx context.Context, writes []RealityWrite, ops []consul.Op) (map[string]uint64, error) {
	drops, counters, err := t.dropOps(ctx, writes)
	if err != nil {
		return nil, err
	}
	written, err := t.commit(ctx, append(ops, drops...)...)
	t.counted(counters, written, err)
	return written, err
}

// commit writes under the node's lock. If a condition in ops fails, it returns ErrConflict.
func (t *NodeSession) commit(ctx context.Context, ops ...consul.Op) (map[string]uint64, error) {
	sent := time.Now()
	fence := consul.CheckSession(t.keys.Nodes.Key(t.name), t.sess.Releasing)
	written, err := t.c.Commit(ctx, append([]consul.Op{fence}, ops...))
	switch {
	case err == nil:
		t.sess.Confirm(sent)
		return written, nil
	case consul.RefusedOn(err, t.keys.Nodes.Key(t.name)):
		return nil, errors.Join(ErrLost, err)
	case slices.ContainsFunc(ops,
		func(op consul.Op) bool { return op.Conditional() && consul.RefusedOn(err, op.Key()) }):
		return nil, errors.Join(ErrConflict, err)
	default:
		return nil, err
	}
}

// Reality reads one reality of the node, or ErrNotFound.
func (t *NodeSession) Reality(ctx context.Context, id pod.Identity) (Rec[pod.Reality], error) {
	return t.Realities.Get(ctx, consul.Consistent, t.name, id.String())
}

// ListRealities reads every reality of the node.
func (t *NodeSession) ListRealities(ctx context.Context) ([]Rec[pod.Reality], []error, error) {
	return t.Realities.List(ctx, consul.Consistent, t.name)
}
