package store

import (
	"context"
	"errors"
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
	// ForgetPod declares a pod's copy on a node that is not alive as gone for good: its stop counts as confirmed.
	ForgetPod RequestKind = "forget-pod"
	// SweepOrphan stops a pod that runs without a controller.
	SweepOrphan RequestKind = "sweep-orphan"
	// RepairReservation releases what a node has reserved for pods of the controller that are not there, and reserves what
	// it has not for those that are.
	RepairReservation RequestKind = "repair-reservation"
	// LabelPod gives a pod that is placed on the node other labels of its own.
	LabelPod RequestKind = "label-pod"
)

// Request is the record at requests/<rc-id>/<ulid>.
type Request struct {
	ID   string       `json:"id"`
	RCID string       `json:"rc_id"`
	Kind RequestKind  `json:"kind"`
	Node string       `json:"node"`
	Pod  pod.Identity `json:"pod,omitzero"` // not for RepairReservation
	// NodeIndex is, for ForgetPod, the index of the node's record when the operator saw nobody hold it; zero: there was none. It
	// names the death that the request is about: once anybody has held the record since, the request is void.
	NodeIndex uint64 `json:"node_index,omitempty"`
	// Labels and Remove are, for LabelPod, the labels to set, and the keys of those to remove.
	Labels map[string]string `json:"labels,omitempty" feature:"own-labels"`
	Remove []string          `json:"remove,omitempty" feature:"own-labels"`
	By     string            `json:"by"`
	At     time.Time         `json:"at"`
}

// leaderID begins the id of what the leader asks by itself; no ULID does.
const leaderID = "leader-"

// ByLeader reports whether the leader asks by itself: no operator does.
func (r *Request) ByLeader() bool { return strings.HasPrefix(r.ID, leaderID) }

// NewRepair returns the request of a farm to repair a node's reservation.
func NewRepair(farm, rcID, node string) Request {
	return Request{ID: NewID(), RCID: rcID, Kind: RepairReservation, Node: node, By: farm, At: time.Now().UTC()}
}

// NodeLock reports whether a node's preparer holds its record, which need not be readable, and the record's index: zero where
// there is none.
func (s *Views) NodeLock(ctx context.Context, name string) (index uint64, locked bool, err error) {
	pair, err := s.c.Get(ctx, s.keys.Nodes.Key(name), consul.Consistent)
	if errors.Is(err, ErrNotFound) {
		return 0, false, nil
	}
	return pair.ModifyIndex, pair.Session != "", err
}

// NodeLock is whether a node's preparer holds its record, and the record's index: zero where there is none.
type NodeLock struct {
	Index  uint64
	Locked bool
}

// NodeLocks is NodeLock for several nodes, in as few requests as Consul's limit allows.
func (s *Views) NodeLocks(ctx context.Context, names []string) (map[string]NodeLock, error) {
	found, err := s.c.GetMany(ctx, s.keys.Nodes.Keys(names), consul.Consistent)
	if err != nil {
		return nil, fmt.Errorf("read who holds %d nodes: %w", len(names), err)
	}
	locks := make(map[string]NodeLock, len(names))
	for _, name := range names {
		pair := found[s.keys.Nodes.Key(name)]
		locks[name] = NodeLock{Index: pair.ModifyIndex, Locked: pair.Session != ""}
	}
	return locks, nil
}

// Ask leaves a request for a controller's owner, with an audit record, and rings. It returns ErrConflict, and nothing is written,
// where a pod is to be forgotten whose node's record is not the one that the request names.
func (s *Operator) Ask(ctx context.Context, r Request, a Audit) error {
	ops := []consul.Op{set(s.keys.Requests.Key(r.RCID, r.ID), r), s.audit(a), s.ring(r.RCID)}
	if r.Kind == ForgetPod {
		ops = append(ops, sameRecord(s.keys.Nodes.Key(r.Node), r.NodeIndex))
	}
	_, err := s.c.Commit(ctx, ops)
	return conflictOn(err, s.keys.Nodes.Key(r.Node))
}

// AskLabels leaves a request to label a pod, with an audit record, and rings. placed is the index that the pod's
// placement was read at. It returns ErrConflict, and nothing is written, where that has changed; and ErrUnknown where
// the context ended before the outcome was known.
func (s *Operator) AskLabels(ctx context.Context, r Request, placed uint64, a Audit) error {
	return s.commitDefinitely(ctx, "pod "+r.Pod.String(), a,
		cas(s.keys.Requests.Key(r.RCID, r.ID), r, 0), sameRecord(s.keys.Pods.Key(r.Pod.String()), placed), s.ring(r.RCID))
}

// forgetsPerTxn leaves room for the condition, the audit record, and a bell for each request.
const forgetsPerTxn = (consul.MaxTxnOps - 2) / 2

// AskForget leaves requests to forget pods of one node, all about the same death, in as many transactions as it takes. Asking
// again for what was asked does no harm. It returns how many of them, from the first, are written for certain, and ErrConflict where
// the node's record is not the one that they name; then what was written before is void.
func (s *Operator) AskForget(ctx context.Context, nodeName string, requests []Request, audit func(part []Request) Audit) (asked int, err error) {
	for part := range slices.Chunk(requests, forgetsPerTxn) {
		a := audit(part)
		ops := []consul.Op{sameRecord(s.keys.Nodes.Key(nodeName), part[0].NodeIndex)}
		for _, r := range part {
			ops = append(ops, set(s.keys.Requests.Key(r.RCID, r.ID), r))
		}
		ops = append(ops, s.rings(field.Each(part, func(r Request) string { return r.RCID })...)...)
		if err := s.commitDefinitely(ctx, "node "+nodeName, a, ops...); err != nil {
			return asked, err
		}
		asked += len(part)
	}
	return asked, nil
}

// NodeRemoval is what is left of a node that is gone for good, as it was read: indices are zero where there is no record.
type NodeRemoval struct {
	Name                   string
	Node, Ops, Reservation uint64
	Audit                  Audit
}

// RemoveNode removes all that the store has of a node: record, the operators' side, reservation, reports, intents, and lists of orphans. It returns
// ErrConflict where a record is not as it was read. Whoever calls it has read the reservation before the placements, and has found
// that none names the node: a pod that is placed there since has changed the reservation.
func (s *Operator) RemoveNode(ctx context.Context, r NodeRemoval) error {
	return s.commitDefinitely(ctx, "node "+r.Name, r.Audit, s.removeNodeOps(r)...)
}

func (s *db) removeNodeOps(r NodeRemoval) []consul.Op {
	ops := []consul.Op{sameRecord(s.keys.Nodes.Key(r.Name), r.Node)}
	for key, index := range map[string]uint64{
		s.keys.Nodes.Key(r.Name): r.Node, s.keys.NodeOps.Key(r.Name): r.Ops, s.keys.Reservations.Key(r.Name): r.Reservation,
	} {
		if index != 0 {
			ops = append(ops, consul.DeleteCAS(key, index))
		}
	}
	if r.Reservation == 0 {
		ops = append(ops, consul.CheckMissing(s.keys.Reservations.Key(r.Name)))
	}
	ops = append(ops, consul.Delete(s.keys.HeardNodes.Key(r.Name)))
	for _, below := range []string{s.keys.Realities.Below(r.Name), s.keys.Intents.Below(r.Name), s.keys.OrphanPages.Below(r.Name)} {
		ops = append(ops, consul.DeleteTree(below))
	}
	return ops
}

// ReportsPerTxn bounds how many reports RemoveReports removes: each takes four operations.
const ReportsPerTxn = 25

// RemoveReports removes what a node reports of pods of which nothing else tells: neither a controller, a placement nor an intent, then as now. A node that has such a pod
// after all reports it again. It returns ErrConflict, and nothing is removed, where one of them is not as it was read.
func (s *Operator) RemoveReports(ctx context.Context, nodeName string, reports []Rec[pod.Reality], a Audit) error {
	var ops []consul.Op
	for _, r := range reports {
		id := r.Value.Identity
		ops = append(ops, consul.CheckMissing(s.keys.RCs.Key(id.RCID)), consul.CheckMissing(s.keys.Pods.Key(id.String())),
			consul.CheckMissing(s.keys.Intents.Key(nodeName, id.String())), consul.DeleteCAS(s.keys.Realities.Key(nodeName, id.String()), r.Index))
	}
	return s.commitDefinitely(ctx, "node "+nodeName, a, ops...)
}

// AgentGone reports whether a machine's Consul agent has failed or left, or is not known.
func (s *Agents) AgentGone(ctx context.Context, consulNode string) (bool, error) {
	return s.c.Catalog.AgentGone(ctx, consulNode)
}
