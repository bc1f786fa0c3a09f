package app

import (
	"context"
	"os"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
)

// FarmConfig is what a farm daemon is told.
type FarmConfig struct {
	Common
	ID      string // stable name, unique among the farms
	Workers int    // controllers worked on at once
}

// Validate reports every mistake.
func (c *FarmConfig) Validate() error {
	var errs field.Errors
	errs.CheckName("id", c.ID)
	if c.Workers < 1 || c.Workers > 256 {
		errs.Add("workers", c.Workers, "a whole number from 1 to 256")
	}
	c.validate(&errs)
	return errs.Err()
}

// Farm is the farm daemon.
type Farm struct {
	*base
	cfg FarmConfig
}

// NewFarm opens everything that the daemon needs except Consul, which may be away for now.
func NewFarm(ctx context.Context, cfg FarmConfig) (*Farm, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b, err := open(ctx, cfg.Common, consul.DefaultMaxConns, os.Stderr)
	if err != nil {
		return nil, err
	}
	return &Farm{base: b, cfg: cfg}, nil
}

// Run works until ctx ends. Then it stops working, gives up its locks, and returns the cause.
func (f *Farm) Run(ctx context.Context) error {
	defer f.close()
	ctx, cancel := f.untilLifeline(ctx)
	defer cancel()
	session := consul.SessionConfig{
		Kind: "farm", Name: f.cfg.ID, TTL: f.cfg.TTL, Journal: f.dir, OnEvent: f.sessionEvents,
		Meta: map[string]string{"rcfarm_prefix": f.cfg.Prefix},
	}
	f.log.WithFields(obs.Fields{obs.FarmID: f.cfg.ID, obs.PID: os.Getpid(), "version": Version}).Info("farm starts")
	err := f.client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
		return farm.NewFarm(farm.Config{
			ID: f.cfg.ID, Version: Version, Store: f.store.FarmTenure(s, f.cfg.ID), Log: f.log,
			TTL: f.cfg.TTL, Workers: f.cfg.Workers,
		}).Start(ctx)
	})
	f.log.WithField(obs.Reason, err.Error()).Info("farm ended")
	return err
}
