package store

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// NodeTenure is what a preparer may write while its session holds its node's lock.
type NodeTenure struct {
	*Store
	sess *consul.Session
	name string
}

// NodeTenure returns the writer for one node under one session. Nothing can be written before Hold.
func (s *Store) NodeTenure(sess *consul.Session, name string) *NodeTenure {
	return &NodeTenure{Store: s, sess: sess, name: name}
}

// Hold takes the node's lock and writes the record with it, or writes it again under the lock that is held. The record's
// Incarnation and ConsulNode are replaced by the session's. It returns *consul.HeldError when another preparer claims the
// same node name, and ErrLost when the session is dead.
func (t *NodeTenure) Hold(ctx context.Context, n node.Node) error {
	sent := time.Now()
	n.Incarnation, n.ConsulNode = t.sess.Incarnation, t.sess.ConsulNode
	value := encode(n)
	_, err := t.c.Acquire(ctx, t.keys.Node(t.name), t.sess.Releasing, func() []byte { return value })
	if err == nil {
		t.sess.Confirm(sent)
	}
	return err
}

// HeldBy returns the session that holds the node's lock when err says that somebody else does.
func HeldBy(err error) (session string, ok bool) {
	var held *consul.HeldError
	if errors.As(err, &held) {
		return held.Session, true
	}
	return "", false
}

// WriteReality writes a reality and rings the controller's bell, in one transaction under the node's lock. index is that
// of the record as last read or written (zero: none exists), so that a write that lingers somewhere cannot land over a
// later one. It returns the new index; ErrConflict when index is not the record's, ErrLost when the lock is not held, or
// ErrUnknown, after which the record must be read again.
func (t *NodeTenure) WriteReality(ctx context.Context, r pod.Reality, index uint64) (uint64, error) {
	key := t.keys.Reality(t.name, r.Identity)
	written, err := t.commit(ctx, key, consul.CAS(key, encode(r), index), t.ring(r.RCID))
	return written[key], err
}

// DeleteReality removes a reality. Its errors are those of WriteReality.
func (t *NodeTenure) DeleteReality(ctx context.Context, id pod.Identity, index uint64) error {
	key := t.keys.Reality(t.name, id)
	_, err := t.commit(ctx, key, consul.DeleteCAS(key, index))
	return err
}

func (t *NodeTenure) commit(ctx context.Context, key string, ops ...consul.Op) (map[string]uint64, error) {
	sent := time.Now()
	fence := consul.CheckSession(t.keys.Node(t.name), t.sess.Releasing)
	written, err := t.c.Commit(ctx, append([]consul.Op{fence}, ops...))
	switch {
	case err == nil:
		t.sess.Confirm(sent)
		return written, nil
	case consul.RefusedOn(err, t.keys.Node(t.name)):
		return nil, errors.Join(ErrLost, err)
	case consul.RefusedOn(err, key):
		return nil, errors.Join(ErrConflict, err)
	default:
		return nil, err
	}
}

// Reality reads one reality of the node, or ErrNotFound.
func (t *NodeTenure) Reality(ctx context.Context, id pod.Identity) (Rec[pod.Reality], error) {
	return get[pod.Reality](ctx, t.Store, t.keys.Reality(t.name, id), consul.Consistent)
}

// ListRealities reads every reality of the node.
func (t *NodeTenure) ListRealities(ctx context.Context) ([]Rec[pod.Reality], []error, error) {
	return list[pod.Reality](ctx, t.Store, t.keys.Realities(t.name), consul.Consistent)
}
