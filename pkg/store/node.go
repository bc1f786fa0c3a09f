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

// NodeSession is what a preparer may write while its session holds its node's lock.
type NodeSession struct {
	*db
	*Watches
	sess *consul.Session
	name string

	orphans orphanPages

	mu    sync.Mutex
	drops map[string]counter // by unit; those that are known
}

// NodeSession returns the writer for one node under one session. Nothing can be written before AcquireNode.
func (s *Store) NodeSession(sess *consul.Session, name string) *NodeSession {
	return &NodeSession{db: s.db, Watches: s.Watches, sess: sess, name: name, drops: map[string]counter{}}
}

// Left returns for how long the session may be believed in from now on, see consul.Session.
func (t *NodeSession) Left() time.Duration { return t.sess.Left() }

// NameConflictError says that a node's name belongs to another machine, or to another data directory.
type NameConflictError struct {
	Record node.Node // as it is
	Writer node.Node // who would write it
	Key    string    // of the record
}

// Error says whose the name is and what to do.
func (e *NameConflictError) Error() string {
	next := "give one of the two another name with --node; or, once nothing of the other's pods runs any more, start this preparer once with " +
		"--take-over-name, or remove the key " + e.Key
	if e.Record.Host == e.Writer.Host {
		next = "if this data directory is a copy, start with an empty one and another name; if this machine's agent was renamed, start this preparer once with --take-over-name"
	}
	return fmt.Sprintf("node name %s belongs to %s, and this is %s; what to do next: %s", e.Record.Name, hostText(e.Record), hostText(e.Writer), next)
}

func hostText(n node.Node) string {
	host := n.Host
	if host == "" {
		host = "without an id"
	}
	return fmt.Sprintf("host %s (Consul agent %q, address %s)", host, n.ConsulNode, n.Address)
}

// AcquireNode takes the node's lock and writes the record with it, or writes it again under the lock that is held. The record's
// Incarnation and ConsulNode are replaced by the session's, it says what this program emulates, and lacks what the gate does not allow. It returns *NameConflictError when the name belongs to another host,
// whether or not that one holds the lock now, unless that one's agent is gone or takeOver is set; *consul.LockedError when
// another session has the lock; and ErrLost when the session is dead. A record that is missing or unreadable belongs to
// nobody. Where the record says other labels than before, the reservation gets their version in the same transaction (ADR 12); a
// token that may not write it does without.
func (t *NodeSession) AcquireNode(ctx context.Context, n node.Node, takeOver bool) error {
	if _, _, err := t.guard.present(ctx); err != nil {
		return fmt.Errorf("read the gate: %w", err)
	}
	sent := time.Now()
	n.Incarnation, n.ConsulNode, n.EmulationVersion = t.sess.Incarnation, t.sess.ConsulNode, t.guard.own()
	n = t.Allowed(n)
	own := lock(t.keys.Nodes.Key(t.name), n, t.sess.Releasing)
	take := func(withLabels bool) error {
		return t.c.Locks.AcquireIf(ctx, own, func(present consul.Pair) ([]consul.Op, error) {
			before, unreadable := t.Nodes.decode(present)
			if unreadable == nil && present.Session != t.sess.Releasing && !takeOver {
				if err := t.mayTake(ctx, before.Value, n); err != nil {
					return nil, err
				}
			}
			if !withLabels || unreadable == nil && maps.Equal(before.Value.Labels, n.Labels) {
				return nil, nil
			}
			return t.labelVersionOps(ctx, n.Labels, present.ModifyIndex != 0)
		})
	}
	err := take(true)
	if Denied(err) && consul.RefusedOn(err, t.keys.Reservations.Key(t.name)) {
		err = take(false)
	}
	return t.sess.Answered(sent, err)
}

// Allowed returns a record without what the gate does not allow, as far as the gate is known: before the first write it is not.
func (t *NodeSession) Allowed(n node.Node) node.Node {
	return *allowed(t.guard, &n)
}

// GateVersion returns the gate as it is known, "" before the first write. While the gate is below what this program emulates, so that records may
// lack something, it is read again.
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

// mayTake returns *NameConflictError when a record that is not held by us belongs to another host, whose agent is not gone.
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

// labelVersionOps returns what makes the reservation say which labels the node has by now, so that no farm that has not heard of them places
// anything there. Where there is no reservation it is made if somebody may know other labels: a farm could make it.
func (t *NodeSession) labelVersionOps(ctx context.Context, labels map[string]string, known bool) ([]consul.Op, error) {
	key := t.keys.Reservations.Key(t.name)
	rec, err := t.Reservations.Get(ctx, consul.Consistent, t.name)
	switch {
	case errors.Is(err, ErrFiltered), errors.Is(err, ErrNotFound) && !known, IsCorrupt(err): // nothing is placed where it is corrupt
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

// LockedBy returns the session that holds the node's lock when err says that somebody else does.
func LockedBy(err error) (session string, ok bool) {
	if locked, ok := errors.AsType[*consul.LockedError](err); ok {
		return locked.Session, true
	}
	return "", false
}

// RealityWrite is a reality to be written.
type RealityWrite struct {
	Reality pod.Reality
	// Index is that of the record as last read or written (zero: none exists), so that a write that lingers somewhere cannot
	// land over a later one, and Before what that one said. One that could not be read is taken to have been available.
	Index  uint64
	Before pod.Reality
	// StopIndex is that of the pod's present intent on this node if it says `stopped` or `standby`, else zero.
	StopIndex uint64
}

// MaxRealities is how many realities share a transaction at the most, each with the bell of another unit.
const MaxRealities = (consul.MaxTxnOps - 1) / 2

// Together returns how many of some writes, from the first on, may share a transaction.
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
			ops += 3 // one more where a counter cannot be read
		}
		if ops > consul.MaxTxnOps || i == MaxRealities {
			return i
		}
	}
	return len(writes)
}

// WriteRealities writes realities of different pods, as many as Together allows, rings the bells of their units, and counts the
// copies that do not count as available any more, in one transaction under the node's lock: all or none. What the gate
// does not allow is left out of them. It returns the new index, which the realities share; ErrConflict when one of the
// indices is not the record's, or others changed what is counted in, ErrLost when the lock is not held,
// consul.ErrTooLarge when they cannot be written together, or ErrUnknown, after which the records must be read again.
func (t *NodeSession) WriteRealities(ctx context.Context, writes ...RealityWrite) (index uint64, err error) {
	var ops []consul.Op
	var ids []string
	for _, w := range writes {
		ops = append(ops, cas(t.keys.Realities.Key(t.name, w.Reality.Identity.String()), *allowed(t.guard, &w.Reality), w.Index))
		if !w.Reality.Local() {
			ids = append(ids, w.Reality.RCID)
		}
	}
	ops = append(ops, t.rings(ids...)...)
	written, err := t.report(ctx, writes, ops)
	return written[t.keys.Realities.Key(t.name, writes[0].Reality.Identity.String())], err
}

// DeleteReality removes a reality that said before what is given. Its errors are those of WriteRealities.
func (t *NodeSession) DeleteReality(ctx context.Context, before pod.Reality, id pod.Identity, index uint64) error {
	w := RealityWrite{Reality: pod.Reality{Identity: id}, Index: index, Before: before}
	_, err := t.report(ctx, []RealityWrite{w}, []consul.Op{consul.DeleteCAS(t.keys.Realities.Key(t.name, id.String()), index)})
	return err
}

// report carries a report out, with what it says about drops.
func (t *NodeSession) report(ctx context.Context, writes []RealityWrite, ops []consul.Op) (map[string]uint64, error) {
	drops, counters, err := t.dropOps(ctx, writes)
	if err != nil {
		return nil, err
	}
	written, err := t.commit(ctx, append(ops, drops...)...)
	t.counted(counters, written, err)
	return written, err
}

// commit writes under the node's lock. Whoever is refused on another key had another record in mind.
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
	case slices.ContainsFunc(ops, func(op consul.Op) bool { return op.Conditional() && consul.RefusedOn(err, op.Key()) }):
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
