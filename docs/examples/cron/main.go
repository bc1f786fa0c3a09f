// Command cron is an example of a program of which several processes run and one works: it runs a command at each tick, in one process only,
// and never twice for one tick, whichever process is killed, paused or upgraded meanwhile. Ticks that nobody was there for are left out.
//
//	go run ./docs/examples/cron -id a -every 1m sh -c 'echo tick $TICK'
//	rcctl election show cron
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election"
)

func main() {
	id, version := flag.String("id", "a", "name of this process among the others"), flag.String("version", "1.0.0", "of this program")
	address, every := flag.String("consul-addr", "", "of the Consul agent"), flag.Duration("every", time.Minute, "time between two ticks")
	flag.Parse()
	client, err := consul.New(consul.Config{Address: *address})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// A session that is lost is taken anew, and the candidate with it.
	err = client.RunSession(ctx, consul.SessionConfig{Kind: "cron", Name: *id}, func(ctx context.Context, s *consul.Session) error {
		c := election.Candidate{Client: client, Session: s, Lease: "cron", ID: *id, BinaryVersion: *version, OnEvent: func(e election.Event) { log.Printf("%+v", e) }}
		return election.Run(ctx, c, func(ctx context.Context) error { return lead(ctx, client, *every, flag.Args()) })
	})
	log.Print(err)
}

// last is the key of the tick that was begun last. Nobody but a leader writes it, and only from the value that it has read.
const last = "rcfarm-examples/cron/last"

// lead runs the command at each tick until the leadership ends.
func lead(ctx context.Context, client *consul.Client, every time.Duration, command []string) error {
	for {
		tick := time.Now().Truncate(every).Add(every)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Until(tick)):
		}
		begun, err := client.Get(ctx, last, consul.Consistent)
		if err != nil && !errors.Is(err, consul.ErrNotFound) || string(begun.Value) >= stamp(tick) {
			continue // the next tick is soon; or this one was begun, here or elsewhere
		}
		// From here on nobody else runs it. One whose outcome is not known is left out: better never than twice.
		if _, err := election.Commit(ctx, []consul.Op{consul.CAS(last, []byte(stamp(tick)), begun.ModifyIndex)}); err != nil {
			log.Printf("tick %s: %v", stamp(tick), err)
			continue
		}
		run := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...) // it is ended by nobody
		run.Env = append(os.Environ(), "TICK="+stamp(tick))
		out, err := run.CombinedOutput()
		log.Printf("tick %s: %s %v", stamp(tick), out, err)
	}
}

func stamp(tick time.Time) string { return fmt.Sprintf("%020d", tick.UnixNano()) }
