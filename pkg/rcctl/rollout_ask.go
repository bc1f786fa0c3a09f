package rcctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// askRollout leaves a request in a rollout's record, and returns the rollout as it was.
func (s *conn) askRollout(ctx context.Context, service string, verb rollout.Verb) (*rollout.Record, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, writeLimit, errWriteLimit)
	defer cancel()
	who, err := s.who(ctx)
	if err != nil {
		return nil, err
	}
	rec, err := s.RolloutOf(ctx, service)
	if errors.Is(err, store.ErrNotFound) {
		return nil, noRollout(service)
	}
	if err != nil {
		return nil, err
	}
	r := &rec.Value
	if why := inspect.WhyNot(r, verb); why != "" {
		return nil, refusedf("rollout of %s: %s, so that it cannot be asked to %s; it is %s, nothing was written", service, why, verb, r.State)
	}
	err = s.AskRollout(ctx, store.RolloutAsk{
		Service: service, ID: r.ID, Request: rollout.Request{Verb: verb, By: who, At: time.Now().UTC()},
		Audit: store.NewAudit(who, "rollout-"+string(verb), upOf(r), []string{fmt.Sprintf("service %s: rollout %s: %s", service, r.ID, verb)}),
	})
	switch {
	case errors.Is(err, store.ErrAsked):
		return nil, refusedf("rollout of %s: %v; see rcctl rollout status %s, then ask again; nothing was written", service, err, service)
	case errors.Is(err, store.ErrNotFound):
		return nil, noRollout(service)
	}
	return r, s.did("the request to "+string(verb)+" the rollout of "+service, "rcctl rollout status "+service, err)
}

// noRollout says that a service has no rollout under way.
func noRollout(service string) error {
	return &notFoundError{text: fmt.Sprintf("service %s has no rollout under way; rcctl history %s shows those that ended", service, service)}
}

func upOf(r *rollout.Record) string {
	if up := r.Upward(); up != nil {
		return up.RC
	}
	return ""
}
