package app

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

func (f *Farm) candidate(s *consul.Session, onEvent func(election.Event)) election.Candidate {
	return election.Candidate{
		Client: f.client, Session: s, Prefix: f.cfg.Prefix, Lease: store.FarmLease, ID: f.cfg.ID,
		BinaryVersion: Version, EmulationVersion: feature.Candidate(Version, f.store.Emulates()),
		Uncoordinated: f.cfg.Uncoordinated, OnEvent: onEvent,
	}
}

// takePart makes the farm a candidate for leader while its session lasts, and runs the duties whenever it leads (ADR
// 27). A farm that cannot be a candidate still works on its controllers. takePart returns the cause when ctx ends, or
// store.ErrWentBack.
func (f *Farm) takePart(ctx context.Context, s *consul.Session, worker *farm.Farm,
	duties ...func(context.Context) error,
) error {
	onEvent := f.electionEvents(worker)
	pace := wait.NewPace(time.Second, time.Minute)
	for {
		err := election.Run(ctx, f.candidate(s, onEvent), func(leaderCtx context.Context) error {
			return together(leaderCtx, duties...)
		})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, consul.ErrWentBack):
			return worker.WentBack(ctx)
		}
		f.log.WithError(err).Warn("cannot take part in the election of the leader; trying again")
		if err := wait.Pause(ctx, pace.NextBackOff()); err != nil {
			return err
		}
	}
}

// electionEvents logs the election, and gives its conditions to the farm, which alerts people.
func (f *Farm) electionEvents(worker *farm.Farm) func(election.Event) {
	var seen election.Event // the latest leader and conditions
	return func(e election.Event) {
		switch e.Kind {
		case election.Elected:
			seen.Leader = e.Leader
			f.log.Info("this farm leads")
		case election.Ended:
			seen.Leader = ""
			f.log.WithField(obs.Reason, e.Err.Error()).Info("this farm leads no more")
		case election.Leader:
			seen.Leader = e.Leader
			f.log.WithField(obs.FarmID, e.Leader).Debug("another farm leads, or none")
		case election.Conditions:
			seen.Conditions = e.Conditions
			for _, c := range e.Conditions {
				f.log.WithFields(obs.Fields{obs.Condition: string(c.Type), obs.Reason: c.Message}).
					Warn("the election of the leader is in trouble")
			}
		case election.Failed:
			f.log.WithError(e.Err).Warn("a step of the election failed; trying again")
		case election.Opened:
		}
		worker.SetElection(seen.Conditions, seen.Leader)
	}
}
