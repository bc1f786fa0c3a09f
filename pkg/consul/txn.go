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

// Limits of one transaction, measured on Consul 1.20.1 and held by tests: the number of operations, and the bytes of
// the HTTP body after values are base64-encoded. What a guard may add is left out of those that callers have.
const (
	serverTxnOps   = 128
	serverTxnBytes = 512 * 1024
	MaxTxnOps      = serverTxnOps - 1
	MaxTxnBytes    = serverTxnBytes - 1024
	// opOverhead is at least the JSON around the key and the value of any operation.
	opOverhead = 208
)

// Op is one operation of a transaction.
type Op struct {
	kv   api.KVTxnOp
	need any   // for a guard
	bad  error // why it must not be sent
}

// Bad returns an operation on a key that is never sent, nor is its transaction: Commit returns the error.
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

// Conditional reports whether the state of its key can make Consul refuse the operation.
func (o Op) Conditional() bool {
	switch o.kv.Verb {
	case api.KVCAS, api.KVDeleteCAS, api.KVCheckIndex, api.KVCheckNotExists:
		return true
	default:
		return false
	}
}

// Key returns the key that the operation is about.
func (o Op) Key() string { return o.kv.Key }

// Bytes returns an upper bound of what the operation adds to the body of its transaction.
func (o Op) Bytes() int { return OpBytes(o.kv.Key, len(o.kv.Value)) }

// OpBytes returns an upper bound of what an operation with a value of that length adds to the body of its transaction.
func OpBytes(key string, value int) int {
	size := len(key)
	if !field.Plain(key) {
		size *= len(`\u0000`)
	}
	return (value+2)/3*4 + size + opOverhead
}

// Set writes a key unconditionally.
func Set(key string, value []byte) Op { return op(api.KVSet, key, value, 0, "") }

// SetFlags writes a key and its flags unconditionally.
func SetFlags(key string, value []byte, flags uint64) Op {
	o := Set(key, value)
	o.kv.Flags = flags
	return o
}

// CAS writes a key if its index is the given one; zero means that the key must not exist.
func CAS(key string, value []byte, index uint64) Op { return op(api.KVCAS, key, value, index, "") }

// Delete removes a key unconditionally.
func Delete(key string) Op { return op(api.KVDelete, key, nil, 0, "") }

// DeleteTree removes every key below a prefix unconditionally.
func DeleteTree(prefix string) Op { return op(api.KVDeleteTree, prefix, nil, 0, "") }

// DeleteCAS removes a key if its index is the given one. Consul also accepts it when the key is missing.
func DeleteCAS(key string, index uint64) Op { return op(api.KVDeleteCAS, key, nil, index, "") }

// CheckIndex demands that a key exists with the given index.
func CheckIndex(key string, index uint64) Op { return op(api.KVCheckIndex, key, nil, index, "") }

// CheckSession demands that the session holds the key. The session must not be empty: Consul would accept that on an
// unlocked key.
func CheckSession(key, session string) Op { return op(api.KVCheckSession, key, nil, 0, session) }

// CheckMissing demands that a key does not exist.
func CheckMissing(key string) Op { return op(api.KVCheckNotExists, key, nil, 0, "") }

// Lock acquires a key for a session and writes the value. It succeeds again for the session that holds it, and then
// moves the key's index only if the value differs.
func Lock(key string, value []byte, session string) Op {
	return op(api.KVLock, key, value, 0, session)
}

// Unlock releases a key that the session holds and writes the value.
func Unlock(key string, value []byte, session string) Op {
	return op(api.KVUnlock, key, value, 0, session)
}

func op(verb api.KVOp, key string, value []byte, index uint64, session string) Op {
	return Op{kv: api.KVTxnOp{Verb: verb, Key: key, Value: value, Index: index, Session: session}}
}

// RefusedError says which operations made Consul refuse a transaction. It matches ErrRefused.
type RefusedError struct{ Failures []Failure }

// Failure is one operation that Consul refused.
type Failure struct {
	Op   int // position in the transaction
	Key  string
	What string // Consul's words
}

// Error names the first refused operation.
func (e *RefusedError) Error() string {
	f := e.Failures[0]
	return fmt.Sprintf("transaction refused: operation %d on %s: %s", f.Op, f.Key, f.What)
}

// Is matches ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// RefusedOn reports whether err is a refusal in which an operation on the key took part.
func RefusedOn(err error, key string) bool {
	refused, is := errors.AsType[*RefusedError](err)
	return is && slices.ContainsFunc(refused.Failures, func(f Failure) bool { return f.Key == key })
}

// RefusedOnly reports whether err is a refusal in which operations on no other keys took part.
func RefusedOnly(err error, keys ...string) bool {
	refused, is := errors.AsType[*RefusedError](err)
	return is && !slices.ContainsFunc(refused.Failures, func(f Failure) bool { return !slices.Contains(keys, f.Key) })
}

// unsentError is why a transaction was not sent.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return ErrUnsent.Error() + ": " + e.err.Error() }
func (e *unsentError) Unwrap() error { return e.err }

// Is matches ErrUnsent and ErrUnknown.
func (e *unsentError) Is(target error) bool { return target == ErrUnsent || target == ErrUnknown }

// Commit carries out a transaction: all of it or nothing. It has three outcomes: nil with the new index of every written
// key, a *RefusedError (nothing was written), or ErrUnknown (it was, will be or never will be; whoever holds a fence bumps
// it before reading on; ErrUnsent besides where it never will be). ErrTooLarge, and ErrLost for a fence without a session, say that it was not sent.
func (c *Client) Commit(ctx context.Context, ops []Op) (map[string]uint64, error) {
	got, err := c.commit(ctx, ops)
	if err != nil {
		return nil, err
	}
	return got.indices(ops), nil
}

// txnOf returns operations as the API client takes them.
func txnOf(ops []Op) api.TxnOps {
	txn, all := make(api.TxnOps, len(ops)), make([]api.TxnOp, len(ops))
	for i := range ops {
		all[i].KV = &ops[i].kv
		txn[i] = &all[i]
	}
	return txn
}

// answer is what a transaction gave.
type answer struct {
	byKey map[string]*api.KVPair
	pairs []*api.KVPair // in the order of the operations
}

// answer returns what a transaction gave, be it by way of the tap or not.
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

// indices returns the index of every key of the operations that exists after them.
func (a *answer) indices(ops []Op) map[string]uint64 {
	written := make(map[string]uint64, len(ops))
	for i := range ops {
		if kv := a.byKey[ops[i].Key()]; kv != nil {
			written[kv.Key] = kv.ModifyIndex
		}
	}
	return written
}

// TxnBytes returns an upper bound of the body of a transaction.
func TxnBytes(ops []Op) int {
	size := len("[]\n")
	for i := range ops {
		size += ops[i].Bytes()
	}
	return size
}

// check returns the bytes of a transaction, or why it cannot be sent.
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
	return c.send(ctx, ops, false)
}

func (c *Client) sendOnce(ctx context.Context, ops []Op, blind bool) (*answer, error) {
	txn := txnOf(ops)
	ctx, cancel := c.call(ctx)
	defer cancel()
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	ctx, t := tapped(ctx)
	t.blind = blind
	ok, resp, _, err := c.api.Txn().Txn(txn, Default.options(ctx))
	switch {
	case err != nil && !connected.Load():
		return nil, &unsentError{err}
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	case ok:
		return t.answer(resp), nil
	case resp == nil || len(resp.Errors) == 0:
		return nil, fmt.Errorf("%w: Consul refused without saying which operation", ErrUnknown)
	}
	refused := &RefusedError{}
	for _, e := range resp.Errors {
		f := Failure{Op: e.OpIndex, What: e.What}
		if e.OpIndex >= 0 && e.OpIndex < len(ops) {
			f.Key = ops[e.OpIndex].Key()
		}
		refused.Failures = append(refused.Failures, f)
	}
	return nil, refused
}

// Reading is what a transaction reads besides what it writes: keys, missing ones too, and everything below some prefixes,
// except a key that is the prefix itself.
// ErrFiltered says that the token may not read one of the keys, or a prefix itself as a key. Whatever rules of their own
// hide below a prefix is left out, and nothing tells.
type Reading struct {
	Keys     []string
	Prefixes []string
}

func (r Reading) ops() []Op {
	ops := make([]Op, 0, len(r.Keys)+2*len(r.Prefixes))
	for _, key := range r.Keys {
		if !slices.Contains(r.Prefixes, key) { // it is read as a prefix is
			ops = append(ops, op(api.KVGetOrEmpty, key, nil, 0, ""))
		}
	}
	for _, prefix := range r.Prefixes {
		ops = append(ops, op(api.KVGetOrEmpty, prefix, nil, 0, ""), op(api.KVGetTree, prefix, nil, 0, ""))
	}
	return ops
}

// found returns the pairs that exist, each once: those below the prefixes one prefix after the other, in the order of their keys. The
// answer may hold more, and the same several times, where callers that share it, or prefixes of one, overlap.
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
			if kv.ModifyIndex != 0 && kv.Key != prefix && strings.HasPrefix(kv.Key, prefix) && !isBelow(kv.Key, r.Prefixes[:i]) {
				below = append(below, pairOf(kv))
			}
		}
		below = append(below[:first], onceEach(below[first:])...)
	}
	return found, below, nil
}

// isBelow reports whether a key is below one of the prefixes, and is none of them.
func isBelow(key string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return key != prefix && strings.HasPrefix(key, prefix) })
}

// onceEach sorts pairs by key and leaves one of each.
func onceEach(pairs []Pair) []Pair {
	byKey := func(a, b Pair) int { return strings.Compare(a.Key, b.Key) }
	if !slices.IsSortedFunc(pairs, byKey) { // it is where nothing overlaps
		slices.SortStableFunc(pairs, byKey)
	}
	return slices.CompactFunc(pairs, func(a, b Pair) bool { return a.Key == b.Key })
}

// Read reads keys and what is below prefixes, in as few transactions as Consul's limit allows, a few of them at once: only what fits into one is
// read at one moment.
func (c *Client) Read(ctx context.Context, r Reading, consistency Consistency) (map[string]Pair, []Pair, error) {
	return r.by(ctx, readsAtOnce, func(ctx context.Context, ops []Op) (*answer, error) { return c.readTxn(ctx, ops, consistency) })
}

// by reads with transactions, so many of them at once.
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

// joined returns what several transactions gave.
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

// readTxn carries out a transaction of reads.
func (c *Client) readTxn(ctx context.Context, ops []Op, consistency Consistency) (*answer, error) {
	ctx, cancel := c.call(ctx)
	defer cancel()
	txn := txnOf(ops)
	ctx, t := tapped(ctx)
	ok, resp, _, err := c.api.Txn().Txn(txn, consistency.options(ctx))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %d keys from %s: %w", len(ops), ops[0].Key(), err)
	case !ok: // such a read has no other reason to fail
		return nil, fmt.Errorf("read %d keys from %s: %w: %+v", len(ops), ops[0].Key(), ErrFiltered, resp.Errors)
	}
	return t.answer(resp), nil
}

// readsAtOnce is how many transactions of one Read are in flight.
const readsAtOnce = 4

// GetMany is Read for keys. The answer has one entry per key; a missing key is absent from it. ErrFiltered says that the token may not read one
// of them.
func (c *Client) GetMany(ctx context.Context, keys []string, consistency Consistency) (map[string]Pair, error) {
	found, _, err := c.Read(ctx, Reading{Keys: keys}, consistency)
	return found, err
}

// Denied reports whether Consul refused because the token lacks a permission.
func (e *RefusedError) Denied() bool {
	return slices.ContainsFunc(e.Failures, Failure.Denied)
}

// Denied reports whether it was for want of a permission.
func (f Failure) Denied() bool { return strings.Contains(f.What, "Permission denied") }
