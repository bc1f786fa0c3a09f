// Command cron is an example of a program that elects a leader among its processes. The leader runs a command at each
// tick. No tick runs twice, even if processes are killed, paused or upgraded. A tick without a leader is skipped.
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
	id := flag.String("id", "a", "name of this process among the others")
	version := flag.String("version", "1.0.0", "version of this program")
	address := flag.String("consul-addr", "", "address of the Consul agent")
	every := flag.Duration("every", time.Minute, "time between two ticks")
	flag.Parse()
	client, err := consul.New(consul.Config{Address: *address})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// RunSession creates another session after a lost one, and calls the function again.
	cfg := consul.SessionConfig{Kind: "cron", Name: *id}
	err = client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
		c := election.Candidate{
			Client: client, Session: s, Lease: "cron", ID: *id, BinaryVersion: *version,
			OnEvent: func(e election.Event) { log.Printf("%+v", e) },
		}
		return election.Run(ctx, c, func(ctx context.Context) error { return lead(ctx, client, *every, flag.Args()) })
	})
	log.Print(err)
}

// last is the key with the last tick that was begun. Only the leader writes it, and only if it has not changed since
// the leader read it.
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
			continue // wait for the next tick: Consul failed, or this tick was begun already
		}
		// After this write no other process runs the tick. If its outcome is unknown, the tick is skipped, so that it
		// does not run twice.
		begin := consul.CAS(last, []byte(stamp(tick)), begun.ModifyIndex)
		if _, err := election.Commit(ctx, []consul.Op{begin}); err != nil {
			log.Printf("tick %s: %v", stamp(tick), err)
			continue
		}
		// The command goes on if the leadership ends.
		run := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...)
		run.Env = append(os.Environ(), "TICK="+stamp(tick))
		out, err := run.CombinedOutput()
		log.Printf("tick %s: %s %v", stamp(tick), out, err)
	}
}

func stamp(tick time.Time) string { return fmt.Sprintf("%020d", tick.UnixNano()) }
