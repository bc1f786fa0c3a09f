package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// FormatVersion is the only record format that this build reads and writes.
const FormatVersion = 2 // 1 had a lock, a bell and drops for each controller

// Schema is the record at schema.
type Schema struct {
	FormatVersion int       `json:"format_version"`
	Epoch         string    `json:"nonce"`      // ULID; replaced when the store went back in time (R1)
	CreatedAt     time.Time `json:"created_at"` // of the epoch
	// WentBack: the epoch began because the store went back in time, so that nodes may have been told more than the records say (ADR 23).
	WentBack bool `json:"went_back,omitempty" feature:"ordered"`
	// Witness is the node on whose word alone the epoch began; empty: a farm saw the store go back, or several nodes did,
	// or the epoch is the first (ADR 9).
	Witness string `json:"witness,omitempty" feature:"witness"`
}

// Check refuses a format that this build does not know.
func (s *Schema) Check() error {
	if s.FormatVersion != FormatVersion || s.Epoch == "" {
		return fmt.Errorf("format version %d and epoch %q; this build knows version %d", s.FormatVersion, s.Epoch, FormatVersion)
	}
	if id, ok := epochID(s.Epoch); !ok || id.Time() > lastEpoch {
		return fmt.Errorf("epoch %q is not valid; allowed: a ULID in lower case, not later than the year 9999", field.Cut(s.Epoch, maxShownEpoch))
	}
	return nil
}

// lastEpoch is the time of the latest epoch that is read, in milliseconds: the end of the last year that a record can
// tell.
var lastEpoch = uint64(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() - 1)

// Breaker is the record at breaker.
type Breaker struct {
	Tripped bool      `json:"tripped"`
	Reason  string    `json:"reason,omitempty"`
	By      string    `json:"by,omitempty"` // farm id or operator
	Since   time.Time `json:"since,omitzero"`
}

// newSchema returns a schema with an epoch above those given, whatever the clocks say: an older snapshot never holds a newer
// epoch. Above the last one that there can be, which only a person has written, it is one of now.
func newSchema(above ...string) Schema {
	s := Schema{FormatVersion: FormatVersion, Epoch: NewID(), CreatedAt: time.Now().UTC()}
	for _, old := range above {
		if s.Epoch > old {
			continue
		}
		if next, ok := after(old); ok {
			s.Epoch = next
		}
	}
	return s
}

// after returns an epoch that is later than another one, and not later than the last that is read.
func after(epoch string) (next string, ok bool) {
	id, ok := epochID(epoch)
	if !ok {
		return "", false
	}
	if id.Time() < lastEpoch {
		return strings.ToLower(withTime(id, id.Time()+1).String()), true
	}
	if id.Time() > lastEpoch {
		return "", false
	}
	entropy := id.Entropy() // within the last millisecond
	for i := range slices.Backward(entropy) {
		if entropy[i]++; entropy[i] != 0 {
			_ = id.SetEntropy(entropy) // of the right length
			return strings.ToLower(id.String()), true
		}
	}
	return "", false
}

func withTime(id ulid.ULID, ms uint64) ulid.ULID {
	_ = id.SetTime(ms) // below lastEpoch
	return id
}

// EnsureSchema returns the schema record. When it is missing it is created, together with the gate, the breaker and the shared
// marker keys that are missing, so that two first writers cannot both succeed. The gate is as new as this program, unless older daemons pass in
// Consul's catalog.
func (s *db) EnsureSchema(ctx context.Context) (Rec[Schema], error) {
	return s.ensureSchema(ctx, s.firstGate)
}

// EnsureSchema is that of operators, whose programs say nothing about the daemons that are to come: the gate that it makes is the oldest. The leader of the farms
// raises it at once.
func (s *Operator) EnsureSchema(ctx context.Context) (Rec[Schema], error) {
	return s.ensureSchema(ctx, func(context.Context) Gate { return newGate(feature.Oldest) })
}

func (s *db) ensureSchema(ctx context.Context, gate func(context.Context) Gate) (Rec[Schema], error) {
	return backoff.Retry(ctx, func() (Rec[Schema], error) {
		rec, err := s.Schema.Get(ctx, consul.Consistent)
		if errors.Is(err, ErrNotFound) {
			if err = s.createSchema(ctx, gate); err != nil && !again(err) {
				return rec, permanent(err)
			}
			return s.Schema.Get(ctx, consul.Consistent)
		}
		return rec, permanent(err)
	}, tries()...)
}

// again reports whether a write that failed may succeed when it is computed anew: it was refused for what others wrote
// meanwhile, or nobody knows.
func again(err error) bool {
	return errors.Is(err, ErrUnknown) || errors.Is(err, ErrRefused) && !Denied(err)
}

// permanent marks an error as one that another try cannot mend; nil stays nil.
func permanent(err error) error {
	if err == nil {
		return nil
	}
	return backoff.Permanent(err)
}

// tries paces repeated attempts, until the context ends.
func tries() []backoff.RetryOption {
	return []backoff.RetryOption{backoff.WithBackOff(wait.NewPace(10*time.Millisecond, time.Second)), backoff.WithMaxElapsedTime(0)}
}

func (s *db) createSchema(ctx context.Context, gate func(context.Context) Gate) error {
	optional := append(s.keys.markers(), s.keys.Breaker.Key(), s.keys.Gate.Key())
	found, err := s.c.GetMany(ctx, optional, consul.Consistent)
	if err != nil {
		return err
	}
	ops := []consul.Op{cas(s.keys.Schema.Key(), newSchema(), 0)}
	for _, key := range optional {
		if _, exists := found[key]; exists {
			continue
		}
		switch key {
		case s.keys.Breaker.Key():
			ops = append(ops, cas(key, Breaker{}, 0))
		case s.keys.Gate.Key():
			ops = append(ops, cas(key, gate(ctx), 0))
		default:
			ops = append(ops, consul.CAS(key, nil, 0))
		}
	}
	_, err = s.c.Commit(ctx, ops)
	return err
}

// Duties are what a farm does for the cluster as a whole.
type Duties struct{ *underLock }

// RenewEpoch replaces the cluster epoch after the store went back in time. known is the epoch that the caller worked with
// before; a newer one in the store means that somebody else was first, and is left alone. A caller that does not know, because it
// has only begun to look, has the present one replaced: it may be from before.
//
// witness is the node on whose word alone that is done, "" for none: the schema keeps it.
func (t *Duties) RenewEpoch(ctx context.Context, known, witness string) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		rec, err := t.EnsureSchema(ctx)
		if err != nil || known != "" && rec.Value.Epoch > known {
			return struct{}{}, permanent(err)
		}
		next := newSchema(known, rec.Value.Epoch)
		next.WentBack = !t.guard.leavesOut(ctx, &Schema{WentBack: true})
		line := fmt.Sprintf("schema.nonce: %s -> %s, as the store went back in time", rec.Value.Epoch, next.Epoch)
		if witness != "" {
			line += ", as node " + witness + " alone says"
			if !t.guard.leavesOut(ctx, &Schema{Witness: witness}) {
				next.Witness = witness
			}
		}
		_, err = t.c.Commit(ctx, []consul.Op{
			cas(t.keys.Schema.Key(), next, rec.Index), t.audit(NewAudit(t.farmID, "renew-nonce", "", []string{line})),
		})
		if _, closed := errors.AsType[*feature.ClosedError](err); !closed && !again(err) { // closed: the gate went back, too, and is known by now
			err = permanent(err)
		}
		return struct{}{}, err
	}, tries()...)
	return err
}

// Synced is the record at settled: for this epoch some farm has found that every living node had said what it runs (R1).
type Synced struct {
	Epoch string `json:"nonce"`
}

// SyncedEpoch reads for which epoch the hold has ended, "" where no farm has said so, or what it said cannot be read.
func (s *Views) SyncedEpoch(ctx context.Context) (string, error) {
	rec, err := s.Synced.Get(ctx, consul.Consistent)
	if errors.Is(err, ErrNotFound) || IsCorrupt(err) {
		return "", nil
	}
	return rec.Value.Epoch, err
}

// MarkSynced says that the hold has ended for the epoch of a schema record. It returns ErrRefused when that is not the
// cluster's any more, so that a mark which lands late is none; whoever gets another error may try again.
func (t *Duties) MarkSynced(ctx context.Context, schema Rec[Schema]) error {
	_, err := t.c.Commit(ctx, []consul.Op{
		consul.CheckIndex(t.keys.Schema.Key(), schema.Index), set(t.keys.Synced.Key(), Synced{Epoch: schema.Value.Epoch}),
	})
	return err
}

// create makes a key that nobody else has made meanwhile. Nothing rings when it could not, so it tries until the answer is
// definite: the error is that of a missing permission, or of the context.
func (s *db) create(ctx context.Context, op consul.Op) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		_, err := s.c.Commit(ctx, []consul.Op{op})
		switch {
		case errors.Is(err, ErrRefused) && !Denied(err):
			return struct{}{}, nil // somebody else was first
		case errors.Is(err, ErrUnknown):
			return struct{}{}, err
		default:
			return struct{}{}, permanent(err)
		}
	}, tries()...)
	return err
}
