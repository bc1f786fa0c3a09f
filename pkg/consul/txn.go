package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Limits of one transaction, measured on Consul 1.20.1 and checked by tests: operations, and bytes of the HTTP body, in
// which values are base64. MaxTxnOps and MaxTxnBytes are lower because a guard may add an operation.
const (
	serverTxnOps   = 128
	serverTxnBytes = 512 * 1024
	MaxTxnOps      = serverTxnOps - 1
	MaxTxnBytes    = serverTxnBytes - 1024
	// opOverhead bounds the JSON around an operation's key and value, in bytes.
	opOverhead = 208
)

// Op is one operation of a transaction.
type Op struct {
	kv   api.KVTxnOp
	need any   // see Needs
	bad  error // not nil: why the operation must not be sent
}

// Bad returns an operation that is never sent: Commit returns the error.
func Bad(key string, err error) Op {
	o := Set(key, nil)
	o.bad = err
	return o
}

// writes reports whether the operation may change its key.
func (o Op) writes() bool {
	switch o.kv.Verb {
	case api.KVGet, api.KVGetOrEmpty, api.KVGetTree, api.KVCheckIndex, api.KVCheckSession, api.KVCheckNotExists:
		return false
	default:
		return true
	}
}

// Conditional reports whether Consul may refuse the operation because of its key's state.
func (o Op) Conditional() bool {
	switch o.kv.Verb {
	case api.KVCAS, api.KVDeleteCAS, api.KVCheckIndex, api.KVCheckNotExists:
		return true
	default:
		return false
	}
}

// Key returns the operation's key.
func (o Op) Key() string { return o.kv.Key }

// Bytes bounds how many bytes the operation adds to the transaction's body.
func (o Op) Bytes() int { return OpBytes(o.kv.Key, len(o.kv.Value)) }

// OpBytes is Op.Bytes for a value of that length.
func OpBytes(key string, value int) int {
	size := len(key)
	if !field.Plain(key) {
		size *= len(`\u0000`)
	}
	return (value+2)/3*4 + size + opOverhead
}

// Set writes a key unconditionally.
func Set(key string, value []byte) Op { return op(api.KVSet, key, value, 0, "") }

// SetFlags is Set with flags.
func SetFlags(key string, value []byte, flags uint64) Op {
	o := Set(key, value)
	o.kv.Flags = flags
	return o
}

// CAS writes a key at an index; zero: the key must not exist.
func CAS(key string, value []byte, index uint64) Op { return op(api.KVCAS, key, value, index, "") }

// Delete removes a key unconditionally.
func Delete(key string) Op { return op(api.KVDelete, key, nil, 0, "") }

// DeleteTree removes every key below a prefix unconditionally.
func DeleteTree(prefix string) Op { return op(api.KVDeleteTree, prefix, nil, 0, "") }

// DeleteCAS removes a key at an index. Consul also accepts it if the key is missing.
func DeleteCAS(key string, index uint64) Op { return op(api.KVDeleteCAS, key, nil, index, "") }

// CheckIndex requires that a key exists with the index.
func CheckIndex(key string, index uint64) Op { return op(api.KVCheckIndex, key, nil, index, "") }

// CheckSession requires that the session holds the key. Consul would accept an empty session for an unlocked key.
func CheckSession(key, session string) Op { return op(api.KVCheckSession, key, nil, 0, session) }

// CheckMissing requires that a key does not exist.
func CheckMissing(key string) Op { return op(api.KVCheckNotExists, key, nil, 0, "") }

// Lock acquires a key and writes the value. If the session holds it already, only another value moves the index.
func Lock(key string, value []byte, session string) Op {
	return op(api.KVLock, key, value, 0, session)
}

// Unlock releases a key that the session holds, and writes the value.
func Unlock(key string, value []byte, session string) Op {
	return op(api.KVUnlock, key, value, 0, session)
}

func op(verb api.KVOp, key string, value []byte, index uint64, session string) Op {
	return Op{kv: api.KVTxnOp{Verb: verb, Key: key, Value: value, Index: index, Session: session}}
}

// RefusedError has the operations that Consul refused. It matches ErrRefused.
type RefusedError struct{ Failures []Failure }

// Failure is one operation that Consul refused.
type Failure struct {
	Op   int // position in the transaction
	Key  string
	What string // Consul's words
}

// Error names the first refused operation.
func (r *RefusedError) Error() string {
	f := r.Failures[0]
	return fmt.Sprintf("transaction refused: operation %d on %s: %s", f.Op, f.Key, f.What)
}

// Is matches ErrRefused.
func (r *RefusedError) Is(target error) bool { return target == ErrRefused }

// RefusedOn reports whether Consul refused an operation on the key, perhaps among others.
func RefusedOn(err error, key string) bool {
	refused, is := errors.AsType[*RefusedError](err)
	return is && slices.ContainsFunc(refused.Failures, func(f Failure) bool { return f.Key == key })
}

// RefusedOnly reports whether Consul refused only operations on these keys.
func RefusedOnly(err error, keys ...string) bool {
	refused, is := errors.AsType[*RefusedError](err)
	return is && !slices.ContainsFunc(refused.Failures, func(f Failure) bool { return !slices.Contains(keys, f.Key) })
}

type unsentError struct{ err error }

func (u *unsentError) Error() string { return ErrUnsent.Error() + ": " + u.err.Error() }
func (u *unsentError) Unwrap() error { return u.err }

// Is matches ErrUnsent and ErrUnknown.
func (u *unsentError) Is(target error) bool { return target == ErrUnsent || target == ErrUnknown }

// Commit carries out a transaction: all of it or nothing. It has three outcomes:
//   - nil, with the new index of every written key: the transaction is done;
//   - *RefusedError: nothing was written;
//   - ErrUnknown: see the package documentation. The holder of a fence must bump the fence before it reads again. With
//     ErrUnsent, the transaction never will be written.
//
// ErrTooLarge, and ErrLost for a fence without a session, mean that it was not sent.
func (c *Client) Commit(ctx context.Context, ops []Op) (map[string]uint64, error) {
	got, err := c.commit(ctx, ops)
	if err != nil {
		return nil, err
	}
	return got.indices(ops), nil
}

// txn sends a transaction once. If Consul refused it, the answer and the error are nil.
func (c *Client) txn(ctx context.Context, ops []Op, level Consistency) (*answer, api.TxnErrors, error) {
	txn, all := make(api.TxnOps, len(ops)), make([]api.TxnOp, len(ops))
	for i := range ops {
		all[i].KV = &ops[i].kv
		txn[i] = &all[i]
	}
	ctx, cancel := c.call(ctx)
	defer cancel()
	ctx, t := tapped(ctx)
	ok, resp, _, err := c.api.Txn().Txn(txn, level.options(ctx))
	switch {
	case err != nil:
		return nil, nil, err
	case ok:
		return t.answer(resp), nil, nil
	case resp == nil:
		return nil, nil, nil
	default:
		return nil, resp.Errors, nil
	}
}

type answer struct {
	byKey map[string]*api.KVPair
	pairs []*api.KVPair // in the order of the operations
}

func (t *tap) answer(resp *api.TxnResponse) *answer {
	pairs := t.pairs
	if !t.took {
		for _, res := range resp.Results {
			if res.KV != nil {
				pairs = append(pairs, res.KV)
			}
		}
	}
	a := &answer{byKey: make(map[string]*api.KVPair, len(pairs)), pairs: pairs}
	for _, p := range pairs {
		a.byKey[p.Key] = p
	}
	return a
}

// indices returns the keys' indices, without keys that do not exist any more.
func (a *answer) indices(ops []Op) map[string]uint64 {
	written := make(map[string]uint64, len(ops))
	for i := range ops {
		if kv := a.byKey[ops[i].Key()]; kv != nil {
			written[kv.Key] = kv.ModifyIndex
		}
	}
	return written
}

// TxnBytes bounds the body of a transaction.
func TxnBytes(ops []Op) int {
	size := len("[]\n")
	for i := range ops {
		size += ops[i].Bytes()
	}
	return size
}

func check(ops []Op) (size int, err error) {
	if len(ops) > MaxTxnOps {
		return 0, fmt.Errorf("%w: %d operations, allowed %d", ErrTooLarge, len(ops), MaxTxnOps)
	}
	for i := range ops {
		if ops[i].bad != nil {
			return 0, ops[i].bad
		}
		if ops[i].kv.Verb == api.KVCheckSession && ops[i].kv.Session == "" {
			return 0, fmt.Errorf("%w: a fence without a session on %s", ErrLost, ops[i].kv.Key)
		}
	}
	if size = TxnBytes(ops); size > MaxTxnBytes {
		return 0, fmt.Errorf("%w: about %d bytes, allowed %d", ErrTooLarge, size, MaxTxnBytes)
	}
	return size, nil
}

func (c *Client) commit(ctx context.Context, ops []Op) (*answer, error) {
	if _, err := check(ops); err != nil {
		return nil, err
	}
	return c.send(ctx, ops)
}

func (c *Client) sendOnce(ctx context.Context, ops []Op) (*answer, error) {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx,
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	got, why, err := c.txn(ctx, ops, Default)
	switch {
	case err != nil && !connected.Load():
		return nil, &unsentError{err}
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	case got != nil:
		return got, nil
	case len(why) == 0:
		return nil, fmt.Errorf("%w: Consul refused without saying which operation", ErrUnknown)
	}
	refused := &RefusedError{}
	for _, e := range why {
		f := Failure{Op: e.OpIndex, What: e.What}
		if e.OpIndex >= 0 && e.OpIndex < len(ops) {
			f.Key = ops[e.OpIndex].Key()
		}
		refused.Failures = append(refused.Failures, f)
	}
	return nil, refused
}

// Reading names keys, which may be missing, and prefixes. A key that equals a prefix is not below it. The read fails
// with ErrFiltered if the token may not read one of the keys, or the key that equals a prefix. If longer ACL rules hide
// keys below a prefix, they are missing, and nothing shows it.
type Reading struct {
	Keys     []string
	Prefixes []string
}

func (r Reading) ops() []Op {
	ops := make([]Op, 0, len(r.Keys)+2*len(r.Prefixes))
	for _, key := range r.Keys {
		if !slices.Contains(r.Prefixes, key) { // it is read below
			ops = append(ops, op(api.KVGetOrEmpty, key, nil, 0, ""))
		}
	}
	for _, prefix := range r.Prefixes {
		ops = append(ops, op(api.KVGetOrEmpty, prefix, nil, 0, ""), op(api.KVGetTree, prefix, nil, 0, ""))
	}
	return ops
}

// found returns the pairs of the reading, each once: existing keys, then pairs below the prefixes, sorted by prefix and
// key. A shared answer also has pairs of other readings. With overlapping prefixes it has a pair several times.
func (r Reading) found(got *answer) (map[string]Pair, []Pair, error) {
	found := make(map[string]Pair, len(r.Keys))
	for _, key := range r.Keys {
		switch kv := got.byKey[key]; {
		case kv == nil:
			return nil, nil, fmt.Errorf("read key %s: %w", key, ErrFiltered)
		case kv.ModifyIndex != 0:
			found[key] = pairOf(kv)
		}
	}
	var below []Pair
	for i, prefix := range r.Prefixes {
		if got.byKey[prefix] == nil {
			return nil, nil, fmt.Errorf("read below %s: %w", prefix, ErrFiltered)
		}
		first := len(below)
		for _, kv := range got.pairs {
			if kv.ModifyIndex != 0 && kv.Key != prefix && strings.HasPrefix(kv.Key, prefix) &&
				!isBelow(kv.Key, r.Prefixes[:i]) {
				below = append(below, pairOf(kv))
			}
		}
		below = append(below[:first], onceEach(below[first:])...)
	}
	return found, below, nil
}

func isBelow(key string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes,
		func(prefix string) bool { return key != prefix && strings.HasPrefix(key, prefix) })
}

func onceEach(pairs []Pair) []Pair {
	byKey := func(a, b Pair) int { return strings.Compare(a.Key, b.Key) }
	if !slices.IsSortedFunc(pairs, byKey) { // they are sorted if no prefixes overlap
		slices.SortStableFunc(pairs, byKey)
	}
	return slices.CompactFunc(pairs, func(a, b Pair) bool { return a.Key == b.Key })
}

// Read uses as few transactions as Consul's limits allow, a few in parallel. Several transactions are from different
// moments.
func (c *Client) Read(ctx context.Context, r Reading, consistency Consistency) (map[string]Pair, []Pair, error) {
	return r.by(ctx, readsAtOnce,
		func(ctx context.Context, ops []Op) (*answer, error) { return c.readTxn(ctx, ops, consistency) })
}

func (r Reading) by(ctx context.Context, atOnce int, txn sender) (map[string]Pair, []Pair, error) {
	chunks := slices.Collect(slices.Chunk(r.ops(), MaxTxnOps))
	parts := make([]*answer, len(chunks))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, chunk := range chunks {
		group.Go(func() (err error) {
			parts[i], err = txn(ctx, chunk)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	return r.found(joined(parts))
}

func joined(parts []*answer) *answer {
	if len(parts) == 1 {
		return parts[0]
	}
	all := &answer{byKey: map[string]*api.KVPair{}}
	for _, p := range parts {
		maps.Copy(all.byKey, p.byKey)
		all.pairs = append(all.pairs, p.pairs...)
	}
	return all
}

func (c *Client) readTxn(ctx context.Context, ops []Op, consistency Consistency) (*answer, error) {
	got, why, err := c.txn(ctx, ops, consistency)
	if err == nil && got == nil { // Consul refuses reads only for a missing permission
		err = fmt.Errorf("%w: %+v", ErrFiltered, why)
	}
	if err != nil {
		return nil, fmt.Errorf("read %d keys from %s: %w", len(ops), ops[0].Key(), err)
	}
	return got, nil
}

// readsAtOnce is how many transactions of one Read are under way at once.
const readsAtOnce = 4

// GetMany is Read for keys. The answer lacks missing keys.
func (c *Client) GetMany(ctx context.Context, keys []string, consistency Consistency) (map[string]Pair, error) {
	found, _, err := c.Read(ctx, Reading{Keys: keys}, consistency)
	return found, err
}

// Denied reports whether the token lacks a permission.
func (r *RefusedError) Denied() bool {
	return slices.ContainsFunc(r.Failures, Failure.Denied)
}

// Denied reports whether the token lacks a permission.
func (f Failure) Denied() bool { return strings.Contains(f.What, "Permission denied") }
