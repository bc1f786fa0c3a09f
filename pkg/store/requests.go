package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// RequestKind is an act that only a controller's owner may carry out.
type RequestKind string

// The kinds of requests.
const (
	// ForgetPod declares a pod's copy on a dead node gone for good: its stop counts as confirmed.
	ForgetPod RequestKind = "forget-pod"
	// SweepOrphan stops a pod that runs without a controller.
	SweepOrphan RequestKind = "sweep-orphan"
	// RepairReservation corrects the shares of the controller's pods in a node's reservation: it releases the shares of
	// pods that are not on the node, and adds missing shares.
	RepairReservation RequestKind = "repair-reservation"
	// LabelPod changes the own labels of a pod that is placed on the node.
	LabelPod RequestKind = "label-pod"
)

// Request is the record at requests/<rc-id>/<ulid>.
type Request struct {
	ID   string       `json:"id"`
	RCID string       `json:"rc_id"`
	Kind RequestKind  `json:"kind"`
	Node string       `json:"node"`
	Pod  pod.Identity `json:"pod,omitzero"` // not for RepairReservation
	// NodeIndex is for ForgetPod: the index of the node's record when the operator saw that no preparer held it; zero:
	// there was no record. If a preparer has held the record since, the node died another time, and the request is
	// void.
	NodeIndex uint64 `json:"node_index,omitempty"`
	// Labels to set and keys to Remove are for LabelPod.
	Labels map[string]string `json:"labels,omitempty" feature:"own-labels"`
	Remove []string          `json:"remove,omitempty" feature:"own-labels"`
	By     string            `json:"by"`
	At     time.Time         `json:"at"`
}

// leaderID begins the ids of the leader's requests. No ULID begins with it.
const leaderID = "leader-"

// ByLeader reports whether the leader made the request, not an operator.
func (r *Request) ByLeader() bool { return strings.HasPrefix(r.ID, leaderID) }

// NewRepair returns a farm's request to repair a node's reservation.
func NewRepair(farm, rcID, node string) Request {
	return Request{ID: NewID(), RCID: rcID, Kind: RepairReservation, Node: node, By: farm, At: time.Now().UTC()}
}

// NodeLock is NodeLocks for one node.
func (v *Views) NodeLock(ctx context.Context, name string) (index uint64, locked bool, err error) {
	locks, err := v.NodeLocks(ctx, []string{name})
	return locks[name].Index, locks[name].Locked, err
}

// NodeLock shows whether a preparer holds the node's record. Index is of the record, readable or not; zero: none.
type NodeLock struct {
	Index  uint64
	Locked bool
}

// NodeLocks reads which nodes have a preparer, consistently.
func (v *Views) NodeLocks(ctx context.Context, names []string) (map[string]NodeLock, error) {
	found, err := v.c.GetMany(ctx, v.keys.Nodes.Keys(names), consul.Consistent)
	if err != nil {
		return nil, fmt.Errorf("read who holds %d nodes: %w", len(names), err)
	}
	locks := make(map[string]NodeLock, len(names))
	for _, name := range names {
		pair := found[v.keys.Nodes.Key(name)]
		locks[name] = NodeLock{Index: pair.ModifyIndex, Locked: pair.Session != ""}
	}
	return locks, nil
}

// Ask writes a request to a controller's owner. It returns ErrConflict if a request to forget a pod names another index
// of the node's record.
func (o *Operator) Ask(ctx context.Context, r Request, a Audit) error {
	ops := []consul.Op{set(o.keys.Requests.Key(r.RCID, r.ID), r), o.audit(a), o.ring(r.RCID)}
	if r.Kind == ForgetPod {
		ops = append(ops, sameRecord(o.keys.Nodes.Key(r.Node), r.NodeIndex))
	}
	return conflictOn(o.send(ctx, ops...), o.keys.Nodes.Key(r.Node))
}

// AskLabels writes a request to label a pod. placed is the index of its placement. AskLabels returns ErrConflict if
// that has changed, and ErrUnknown if the context ended before the outcome was known.
func (o *Operator) AskLabels(ctx context.Context, r Request, placed uint64, a Audit) error {
	return o.commitDefinitely(ctx, "pod "+r.Pod.String(), a,
		cas(o.keys.Requests.Key(r.RCID, r.ID), r, 0), sameRecord(o.keys.Pods.Key(r.Pod.String()),
			placed), o.ring(r.RCID))
}

// forgetsPerTxn leaves space for the condition, the audit record, and a bell for each request.
const forgetsPerTxn = (consul.MaxTxnOps - 2) / 2

// AskForget writes requests to forget pods of one node, all about the same death. It can be called again with the same
// requests. asked is how many of them, from the first on, were certainly written. ErrConflict means that the node's
// record has changed. Then the requests that were written before are void.
func (o *Operator) AskForget(ctx context.Context, nodeName string, requests []Request,
	audit func(part []Request) Audit,
) (asked int, err error) {
	for part := range slices.Chunk(requests, forgetsPerTxn) {
		a := audit(part)
		ops := []consul.Op{sameRecord(o.keys.Nodes.Key(nodeName), part[0].NodeIndex)}
		for _, r := range part {
			ops = append(ops, set(o.keys.Requests.Key(r.RCID, r.ID), r))
		}
		ops = append(ops, o.rings(field.Each(part, func(r Request) string { return r.RCID })...)...)
		if err := o.commitDefinitely(ctx, "node "+nodeName, a, ops...); err != nil {
			return asked, err
		}
		asked += len(part)
	}
	return asked, nil
}

// NodeRemoval is the removal of a node that is gone for good, with its records' indices; zero: there is no record.
type NodeRemoval struct {
	Name                   string
	Node, Ops, Reservation uint64
	Audit                  Audit
}

// RemoveNode removes all records of a node. It returns ErrConflict if a record has changed. Before, the caller must
// read the reservation, and then find no placement on the node. A later placement changes the reservation.
func (o *Operator) RemoveNode(ctx context.Context, r NodeRemoval) error {
	return o.commitDefinitely(ctx, "node "+r.Name, r.Audit, o.removeNodeOps(r)...)
}

func (s *db) removeNodeOps(r NodeRemoval) []consul.Op {
	ops := []consul.Op{sameRecord(s.keys.Nodes.Key(r.Name), r.Node)}
	for key, index := range map[string]uint64{
		s.keys.Nodes.Key(r.Name): r.Node, s.keys.NodeOps.Key(r.Name): r.Ops,
		s.keys.Reservations.Key(r.Name): r.Reservation,
	} {
		if index != 0 {
			ops = append(ops, consul.DeleteCAS(key, index))
		}
	}
	if r.Reservation == 0 {
		ops = append(ops, consul.CheckMissing(s.keys.Reservations.Key(r.Name)))
	}
	ops = append(ops, consul.Delete(s.keys.HeardNodes.Key(r.Name)))
	for _, below := range []string{
		s.keys.Realities.Below(r.Name), s.keys.Intents.Below(r.Name),
		s.keys.OrphanPages.Below(r.Name),
	} {
		ops = append(ops, consul.DeleteTree(below))
	}
	return ops
}

// ReportsPerTxn bounds how many reports RemoveReports removes, because each takes four operations.
const ReportsPerTxn = 25

// RemoveReports removes a node's reports of pods without controller, placement and intent. If such a pod still runs,
// its node reports it again. If a report has changed, RemoveReports returns ErrConflict and removes nothing.
func (o *Operator) RemoveReports(ctx context.Context, nodeName string, reports []Rec[pod.Reality], a Audit) error {
	var ops []consul.Op
	for _, r := range reports {
		id := r.Value.Identity
		ops = append(ops, consul.CheckMissing(o.keys.RCs.Key(id.RCID)),
			consul.CheckMissing(o.keys.Pods.Key(id.String())),
			consul.CheckMissing(o.keys.Intents.Key(nodeName, id.String())),
			consul.DeleteCAS(o.keys.Realities.Key(nodeName, id.String()), r.Index))
	}
	return o.commitDefinitely(ctx, "node "+nodeName, a, ops...)
}

// AgentGone reports whether a machine's Consul agent has failed or left, or is not known.
func (a *Agents) AgentGone(ctx context.Context, consulNode string) (bool, error) {
	return a.c.Catalog.AgentGone(ctx, consulNode)
}
