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

// Settings is the record at settings: what operators set for the cluster as a whole. It is a record of its own:
// whoever writes the schema makes a new world of it, and all daemons watch that.
type Settings struct {
	_ struct{} `feature:"domain"`
	// Domain is the one below which services get their host names, at their next deploy; empty: they get none.
	Domain string    `json:"domain,omitempty"`
	By     string    `json:"by,omitempty"` // the operator who set it
	At     time.Time `json:"at,omitzero"`
}

// Check reports why stored settings cannot be used.
func (s *Settings) Check() error {
	var errs field.Errors
	if s.Domain != "" {
		record.CheckDomain(&errs, "domain", s.Domain)
	}
	errs.CheckTime("at", s.At)
	return errs.Err()
}

// PresentSettings reads the settings. Where there are none they are empty, at index zero. The error is a *CorruptError
// where there are some that cannot be read, with their index.
func (s *Views) PresentSettings(ctx context.Context) (Rec[Settings], error) {
	rec, err := s.Settings.Get(ctx, consul.Consistent)
	if errors.Is(err, ErrNotFound) {
		return Rec[Settings]{}, nil
	}
	return rec, err
}

// ErrSettingsChanged says, with ErrConflict, that a document depends on settings that are others by now.
var ErrSettingsChanged = errors.New("the settings of the cluster changed")

// SetSettings writes settings in place of those that were read, which may be some that cannot be read. ErrConflict
// says that they changed meanwhile, ErrInvalid that nobody could read the new ones.
func (s *Operator) SetSettings(ctx context.Context, rec Rec[Settings], a Audit) error {
	rec.Value.By, rec.Value.At = a.Who, a.At.Truncate(time.Second)
	if err := rec.Value.Check(); err != nil {
		return fmt.Errorf("settings: %w: %w", ErrInvalid, err)
	}
	return s.commitDefinitely(ctx, "settings", a, cas(s.keys.Settings.Key(), rec.Value, rec.Index))
}
