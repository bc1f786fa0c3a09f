package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

const (
	handOverLimit      = 0.1 // s, beyond the round
	leaderKilledLimit  = 3   // s
	manyElectedLimit   = 2   // s
	idleCandidateLimit = 0.2 // requests/s of each candidate besides the liveness of its session
)

// elect is an election in this program. Each candidate has its own session and connections.
type elect struct {
	addr    string
	name    string
	running errgroup.Group
	leads   chan led       // who begins to lead
	opened  chan time.Time // when a round began
	ended   chan time.Time // when a leadership ended: its duty's context
}

type led struct {
	id string
	at time.Time
}

func newElect(sc *scope, addr, name string) *elect {
	e := &elect{
		addr: addr, name: name, leads: make(chan led, 256),
		opened: make(chan time.Time, 256), ended: make(chan time.Time, 256),
	}
	sc.add(func() { _ = e.running.Wait() }) // Wait returns nil; all candidates have been stopped by then
	return e
}

type candidate struct {
	stop context.CancelFunc // ends it in order
	kill func()             // as kill -9 does: Consul gets nothing from it any more
}

func (e *elect) start(ctx context.Context, sc *scope, id, version string, cut bool) (candidate, error) {
	addr, kill := e.addr, func() {}
	if cut {
		var link scope
		between, err := startProxy(&link, e.addr, 0)
		if err != nil {
			return candidate{}, err
		}
		sc.add(link.close)
		addr, kill = between.addr, link.close
	}
	client, err := consul.New(consul.Config{Address: addr})
	if err != nil {
		return candidate{}, err
	}
	ctx, stop := context.WithCancel(ctx)
	e.running.Go(func() error {
		defer client.Close()
		_ = client.RunSession(ctx, consul.SessionConfig{Kind: "bench", Name: e.name + "-" + id},
			func(ctx context.Context, s *consul.Session) error {
				c := election.Candidate{
					Client: client, Session: s, Lease: e.name, ID: id,
					BinaryVersion: version, OnEvent: func(ev election.Event) {
						if ev.Kind == election.Opened {
							e.opened <- time.Now()
						}
					},
				}
				return election.Run(ctx, c, func(ctx context.Context) error {
					e.leads <- led{id, time.Now()}
					<-ctx.Done()
					e.ended <- time.Now()
					return context.Cause(ctx)
				})
			})
		return nil
	})
	sc.add(stop)
	return candidate{stop, kill}, nil
}

// leader waits until the candidate with this id leads, or any candidate if id is empty.
func (e *elect) leader(ctx context.Context, id string) (led, error) {
	for {
		select {
		case l := <-e.leads:
			if id == "" || l.id == id {
				return l, nil
			}
		case <-ctx.Done():
			return led{}, fmt.Errorf("%s does not lead %s: %w", id, e.name, context.Cause(ctx))
		}
	}
}

func electionBench(ctx context.Context, b *bench) error {
	var sc scope
	defer sc.close()
	dev, err := b.startDev(ctx, &sc, manyClients)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		run  func(context.Context, string) error
	}{{"hand-over", b.electionHandOver}, {"killed", b.electionKilled}, {"many", b.electionMany}} {
		if !b.wants(part.name) {
			continue
		}
		if err := part.run(ctx, dev.addr); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// electionHandOver starts one candidate after the other. Each has a lower version than the one before, and takes the
// lease over.
func (b *bench) electionHandOver(ctx context.Context, addr string) error {
	var sc scope
	defer sc.close()
	e := newElect(&sc, addr, "hand-over")
	var rounds, beyond []float64
	for i := range b.failovers + 1 {
		id := fmt.Sprintf("c%d", i)
		for len(e.opened) > 0 {
			<-e.opened
		}
		if _, err := e.start(ctx, &sc, id, fmt.Sprintf("1.%d.0", 100-i), false); err != nil {
			return err
		}
		l, err := e.leader(ctx, id)
		if err != nil {
			return err
		}
		if i > 0 {
			opened, ended := <-e.opened, <-e.ended
			rounds, beyond = append(rounds, ended.Sub(opened).Seconds()), append(beyond, l.at.Sub(ended).Seconds())
		}
	}
	b.report.add("election/hand-over/round-median", median(rounds), "s", goal{})
	b.report.add("election/hand-over/round-worst", slices.Max(rounds), "s", goal{})
	b.report.add("election/hand-over/beyond-median", median(beyond), "s", goal{})
	b.report.add("election/hand-over/beyond-worst", slices.Max(beyond), "s", atMost(handOverLimit))
	return nil
}

func (b *bench) electionKilled(ctx context.Context, addr string) error {
	var all []float64
	for i := range b.failovers {
		took, err := b.oneElectionKilled(ctx, addr, fmt.Sprintf("killed-%d", i))
		if err != nil {
			return err
		}
		all = append(all, took.Seconds())
	}
	b.report.add("election/killed/median", median(all), "s", goal{})
	b.report.add("election/killed/worst", slices.Max(all), "s", atMost(leaderKilledLimit))
	return nil
}

func (b *bench) oneElectionKilled(ctx context.Context, addr, name string) (time.Duration, error) {
	var sc scope
	defer sc.close()
	e := newElect(&sc, addr, name)
	first, err := e.start(ctx, &sc, "a", "1.18.0", true)
	if err != nil {
		return 0, err
	}
	if _, err := e.leader(ctx, "a"); err != nil {
		return 0, err
	}
	for _, id := range []string{"b", "c"} {
		if _, err := e.start(ctx, &sc, id, "1.19.0", false); err != nil {
			return 0, err
		}
	}
	if err := wait.Pause(ctx, time.Second); err != nil {
		return 0, err
	}
	killed := time.Now()
	first.kill()
	l, err := e.leader(ctx, "")
	return l.at.Sub(killed), err
}

const manyCandidates = 50

// electionMany lets many candidates elect a successor. Then it counts their requests at rest, including idle rounds.
func (b *bench) electionMany(ctx context.Context, addr string) error {
	var sc scope
	defer sc.close()
	e := newElect(&sc, addr, "many")
	first, err := e.start(ctx, &sc, "first", "1.0.0", false)
	if err != nil {
		return err
	}
	if _, err := e.leader(ctx, "first"); err != nil {
		return err
	}
	for i := range manyCandidates {
		if _, err := e.start(ctx, &sc, fmt.Sprintf("c%02d", i), "1.19.0", false); err != nil {
			return err
		}
	}
	if err := wait.Pause(ctx, atRest); err != nil {
		return err
	}
	ended := time.Now()
	first.stop()
	l, err := e.leader(ctx, "")
	if err != nil {
		return err
	}
	b.report.add("election/many/elected", l.at.Sub(ended).Seconds(), "s", below(manyElectedLimit))
	if err := wait.Pause(ctx, atRest); err != nil {
		return err
	}
	got, err := b.watchRequests(ctx, addr, election.DefaultPingEvery+atRest)
	if err != nil {
		return err
	}
	b.report.add("election/many/idle", got.others/manyCandidates, "requests/s each", below(idleCandidateLimit))
	b.report.add("election/many/idle-liveness", got.liveness/manyCandidates, "requests/s each", goal{})
	return nil
}
