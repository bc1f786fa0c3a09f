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

// FormatVersion is the only record format of this build.
const FormatVersion = 2 // in version 1, each controller had its own lock, bell and drops

// Schema is the record at schema.
type Schema struct {
	FormatVersion int       `json:"format_version"`
	Epoch         string    `json:"nonce"`      // ULID; replaced when the store went back in time (R1)
	CreatedAt     time.Time `json:"created_at"` // of the epoch
	// WentBack: the epoch began because the store went back in time. A node may have had a later intent than the
	// records have (ADR 23).
	WentBack bool `json:"went_back,omitempty" feature:"ordered"`
	// Witness is the node whose report alone began the epoch. It is empty if a farm or several nodes saw the store go
	// back, and in the first epoch (ADR 9).
	Witness string `json:"witness,omitempty" feature:"witness"`
}

// Check refuses a format that this build does not know.
func (s *Schema) Check() error {
	if s.FormatVersion != FormatVersion || s.Epoch == "" {
		return fmt.Errorf("format version %d and epoch %q; this build knows version %d", s.FormatVersion,
			s.Epoch, FormatVersion)
	}
	if id, ok := epochID(s.Epoch); !ok || id.Time() > lastEpoch {
		return fmt.Errorf("epoch %q is not valid; allowed: a ULID in lower case, not later than the year 9999",
			field.Cut(s.Epoch, maxShownEpoch))
	}
	return nil
}

// lastEpoch is the time of the latest accepted epoch, in milliseconds: the last year that a record can contain.
var lastEpoch = uint64(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() - 1)

// Breaker is the record at breaker.
type Breaker struct {
	Tripped bool      `json:"tripped"`
	Reason  string    `json:"reason,omitempty"`
	By      string    `json:"by,omitempty"` // farm id or operator
	Since   time.Time `json:"since,omitzero"`
}

// newSchema returns an epoch above the given ones, even if a clock is behind, because an older snapshot must never
// contain a newer epoch. For the last possible epoch, which only a person can have written, it uses the present time.
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

// after returns a later epoch. ok is false if Check would accept none.
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
	entropy := id.Entropy() // in the last millisecond the random part grows
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

// EnsureSchema returns the schema. If it is missing, one transaction creates it, with missing gate, breaker and
// markers. So only one of two first writers succeeds. The gate is this program's version, unless the catalog has
// passing daemons of an earlier version.
func (s *db) EnsureSchema(ctx context.Context) (Rec[Schema], error) {
	return s.ensureSchema(ctx, s.firstGate)
}

// EnsureSchema is like the EnsureSchema of daemons, but a new gate is the oldest version, because an operator's program
// does not know the daemons' versions. The farms' leader raises the gate at once.
func (o *Operator) EnsureSchema(ctx context.Context) (Rec[Schema], error) {
	return o.ensureSchema(ctx, func(context.Context) Gate { return newGate(feature.Oldest) })
}

func (s *db) ensureSchema(ctx context.Context, gate func(context.Context) Gate) (rec Rec[Schema], err error) {
	err = retry(ctx, func() (bool, error) {
		if rec, err = s.Schema.Get(ctx, Consistent); !errors.Is(err, ErrNotFound) {
			return false, err
		}
		if err := s.createSchema(ctx, gate); err != nil && !again(err) {
			return false, err
		}
		rec, err = s.Schema.Get(ctx, Consistent)
		return true, err
	})
	return rec, err
}

// again reports whether to compute and write again, because another program wrote, or the outcome is unknown.
func again(err error) bool {
	return errors.Is(err, ErrUnknown) || errors.Is(err, ErrRefused) && !Denied(err)
}

// retry calls try at growing intervals until it returns no error, again is false, or the context ends.
func retry(ctx context.Context, try func() (again bool, err error)) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		again, err := try()
		if err != nil && !again {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait.NewPace(10*time.Millisecond, time.Second)), backoff.WithMaxElapsedTime(0))
	return err
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
	return s.send(ctx, ops...)
}

// ClusterWrites has a farm's writes for the whole cluster.
type ClusterWrites struct{ *underLock }

// RenewEpoch replaces the epoch after the store went back in time. known is the epoch with which the caller worked. If
// the store has a newer one, another farm was first, and RenewEpoch keeps it. A caller that has just started passes "",
// and RenewEpoch replaces the present epoch, which may be an old one. witness is Schema.Witness.
func (d *ClusterWrites) RenewEpoch(ctx context.Context, known, witness string) error {
	return retry(ctx, func() (bool, error) {
		rec, err := d.EnsureSchema(ctx)
		if err != nil || known != "" && rec.Value.Epoch > known {
			return false, err
		}
		next := newSchema(known, rec.Value.Epoch)
		next.WentBack = !d.guard.leavesOut(ctx, &Schema{WentBack: true})
		line := fmt.Sprintf("schema.nonce: %s -> %s, as the store went back in time", rec.Value.Epoch, next.Epoch)
		if witness != "" {
			line += ", as node " + witness + " alone says"
			if !d.guard.leavesOut(ctx, &Schema{Witness: witness}) {
				next.Witness = witness
			}
		}
		err = d.send(ctx, cas(d.keys.Schema.Key(), next, rec.Index),
			d.audit(NewAudit(d.farmID, "renew-nonce", "", []string{line})))
		_, closed := errors.AsType[*feature.ClosedError](err) // the gate went back too; now it is known
		return closed || again(err), err
	})
}

// Synced is the record at settled: in this epoch all living nodes have reported which pods they run, and a farm has
// read that (R1).
type Synced struct {
	Epoch string `json:"nonce"`
}

// SyncedEpoch reads the epoch for which the hold has ended; "" if the record is missing or unreadable.
func (v *Views) SyncedEpoch(ctx context.Context) (string, error) {
	rec, err := v.Synced.present(ctx)
	return rec.Value.Epoch, err
}

// MarkSynced writes that the hold has ended. It returns ErrRefused if the epoch has changed.
func (d *ClusterWrites) MarkSynced(ctx context.Context, schema Rec[Schema]) error {
	return d.send(ctx, consul.CheckIndex(d.keys.Schema.Key(), schema.Index),
		set(d.keys.Synced.Key(), Synced{Epoch: schema.Value.Epoch}))
}

// create makes a missing key. It tries again while the outcome is unknown, because no later event would.
func (s *db) create(ctx context.Context, op consul.Op) error {
	return retry(ctx, func() (bool, error) {
		err := s.send(ctx, op)
		if errors.Is(err, ErrRefused) && !Denied(err) {
			return false, nil // another program was first
		}
		return errors.Is(err, ErrUnknown), err
	})
}

// RestoreBreaker creates a missing breaker, because without it no farm may stop pods.
func (d *ClusterWrites) RestoreBreaker(ctx context.Context) error {
	return d.create(ctx, cas(d.keys.Breaker.Key(), Breaker{}, 0))
}

// TripBreaker trips the breaker with an audit record, or returns ErrConflict if the breaker has changed. It has no
// fence: a farm without locks may trip the breaker, because that can only keep pods from being stopped. If an operator
// has reset the breaker, the index is another, and Consul refuses the write.
func (d *ClusterWrites) TripBreaker(ctx context.Context, index uint64, b Breaker, a Audit) error {
	return conflictOn(d.send(ctx, cas(d.keys.Breaker.Key(), b, index), d.audit(a)), d.keys.Breaker.Key())
}
