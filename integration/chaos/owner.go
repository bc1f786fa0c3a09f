package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A program that owns one controller (farm.New) comes and goes during a run: chaos itself, as another process on a
// farm's machine, so that it can be paused and killed.

const ownCommand = "own"

// No farm has this name.
const ownerName = "owner"

const (
	ownerAway = 3 * time.Second // between two lives, at most
	// shortest life, half of the longest: farms hand a controller over when members were stable for 10 s
	ownerLives = 15 * time.Second
	ownerBack  = 2 * time.Second // how long the owner still runs after a pause
)

type owner struct {
	rcID, token, dir string
	ttl              time.Duration
}

func (o owner) args() []string {
	return []string{ownCommand, "-rc", o.rcID, "-token-file", o.token, "-data-dir", o.dir, "-ttl", o.ttl.String()}
}

func own(args []string) int {
	var o owner
	flags := flag.NewFlagSet(ownCommand, flag.ContinueOnError)
	flags.StringVar(&o.rcID, "rc", "", "id of the controller")
	flags.StringVar(&o.token, "token-file", "", "file with the Consul token")
	flags.StringVar(&o.dir, "data-dir", "", "directory of its own")
	flags.DurationVar(&o.ttl, "ttl", 0, "of its liveness")
	err := flags.Parse(args)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = o.run(ctx)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "owner:", err)
		return exitHarness
	}
	return exitGood
}

func (o owner) run(ctx context.Context) error {
	log, err := obs.NewLogger(os.Stderr, "debug", "text")
	if err != nil {
		return err
	}
	client, err := consul.New(consul.Config{Address: fmt.Sprintf("127.0.0.1:%d", consulPort), TokenFile: o.token})
	if err != nil {
		return err
	}
	keys, err := store.NewKeys(store.DefaultPrefix)
	if err != nil {
		return err
	}
	dir, err := app.OpenDataDir(ctx, o.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	st := store.New(client, keys)
	session := consul.SessionConfig{
		Kind: "farm", Name: ownerName, Scope: keys.Prefix(),
		TTL: o.ttl, Journal: dir, Meta: st.FarmMeta(),
	}
	return client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
		one, err := farm.New(farm.Config{
			ID: ownerName, Version: app.Version, RCID: o.rcID,
			Store: st.FarmSession(s, ownerName), Log: log, TTL: o.ttl,
		})
		if err != nil {
			return err
		}
		return one.WatchDesires(ctx, nil) // the log has all errors
	})
}

func (c *chaos) comeAndGo(ctx context.Context) {
	rng := newRand(c.cfg.seed, 12)
	beside := rng.IntN(farms)
	for wait(ctx, upTo(rng, ownerAway)) {
		p, err := c.startOwner(ctx, beside, rng)
		if ctx.Err() == nil {
			c.report.operation("own one controller", err)
		}
		if err == nil {
			c.live(ctx, p, rng)
		}
	}
}

// startOwner starts an owner beside a farm, with its token.
func (c *chaos) startOwner(ctx context.Context, beside int, rng *rand.Rand) (*process, error) {
	c.acting.RLock()
	defer c.acting.RUnlock()
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, err := c.someController(call, rng)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o := owner{
		rcID: r.ID, token: c.tokenFile(c.farms[beside].name), dir: filepath.Join(c.cfg.dir, ownerName+"-data"),
		ttl: c.cfg.ttl,
	}
	p := &process{name: ownerName, on: c.agents[beside].on, dir: c.cfg.dir, args: append([]string{self}, o.args()...)}
	return p, p.start()
}

// live lets an owner work, and then kills it, pauses it past its session, or ends it in order.
func (c *chaos) live(ctx context.Context, p *process, rng *rand.Rand) {
	defer p.stop()
	wait(ctx, ownerLives+upTo(rng, ownerLives))
	end := []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGTERM}[rng.IntN(3)]
	c.acting.RLock() // after a wipe nothing is disturbed
	p.signal(end)
	c.acting.RUnlock()
	if end == syscall.SIGSTOP {
		wait(ctx, long(c.cfg.ttl))
		p.signal(syscall.SIGCONT)
		wait(ctx, ownerBack)
	}
}

// someController returns a controller that is not being deleted, half of the time a revision of a service.
func (c *chaos) someController(ctx context.Context, rng *rand.Rand) (*rc.RC, error) {
	recs, _, err := c.stores[rng.IntN(servers)].RCs.List(ctx, store.Default)
	if err != nil {
		return nil, err
	}
	recs = slices.DeleteFunc(recs, func(r store.Rec[rc.RC]) bool { return r.Value.DeletedAt != nil })
	ofService := func(r store.Rec[rc.RC]) bool { return r.Value.Service != nil }
	if slices.ContainsFunc(recs, ofService) && rng.IntN(2) == 0 {
		recs = slices.DeleteFunc(recs, func(r store.Rec[rc.RC]) bool { return !ofService(r) })
	}
	if len(recs) == 0 {
		return nil, errors.New("there is no controller")
	}
	return &recs[rng.IntN(len(recs))].Value, nil
}
