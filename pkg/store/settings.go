package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// Settings is the record at settings: the operators' settings for the whole cluster. They are not in the schema,
// because a write of the schema begins a new epoch.
type Settings struct {
	_ struct{} `feature:"domain"`
	// Domain is the suffix of services' host names, from their next deployment on. Empty: no host names.
	Domain string    `json:"domain,omitempty"`
	By     string    `json:"by,omitempty"` // the operator who set it
	At     time.Time `json:"at,omitzero"`
}

// Check returns why stored settings cannot be used.
func (s *Settings) Check() error {
	var errs field.Errors
	if s.Domain != "" {
		record.CheckDomain(&errs, "domain", s.Domain)
	}
	errs.CheckTime("at", s.At)
	return errs.Err()
}

// PresentSettings reads the settings; index zero: there are none. For an unreadable record it returns a *CorruptError
// and the index.
func (v *Views) PresentSettings(ctx context.Context) (Rec[Settings], error) {
	rec, err := v.Settings.Get(ctx, consul.Consistent)
	if errors.Is(err, ErrNotFound) {
		return Rec[Settings]{}, nil
	}
	return rec, err
}

// ErrSettingsChanged is joined to ErrConflict: a document depends on settings that have changed.
var ErrSettingsChanged = errors.New("the settings of the cluster changed")

// SetSettings replaces the settings that the caller read, even unreadable ones. It returns ErrConflict or ErrInvalid.
func (o *Operator) SetSettings(ctx context.Context, rec Rec[Settings], a Audit) error {
	rec.Value.By, rec.Value.At = a.Who, a.At.Truncate(time.Second)
	if err := rec.Value.Check(); err != nil {
		return fmt.Errorf("settings: %w: %w", ErrInvalid, err)
	}
	return o.commitDefinitely(ctx, "settings", a, cas(o.keys.Settings.Key(), rec.Value, rec.Index))
}
