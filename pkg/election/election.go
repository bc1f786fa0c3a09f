// Package election chooses one leader among the processes of a program, so that a fleet of mixed versions is safe: all candidates write
// records, all compute the same choice (package ballot), and a lock in Consul decides where they have seen different things.
//
// Run is a candidate for as long as its context lasts, and runs a duty whenever it leads. Leadership is a context: it ends with a cause,
// ErrYielded or ErrLost, and the duty must return then. What a leader writes goes through Commit, which has Consul itself refuse it once
// the lock has moved on: a leader that was paused, cut off or deposed, and does not know yet, changes nothing any more.
//
// The package needs a Consul and a session (consul.Client.RunSession), and nothing else of rcfarm. docs/adr/0021-elections.md says why it
// is as it is, docs/examples/cron is a program that uses it.
package election

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// Why a leader's context ends, besides the reasons of the context that Run got.
var (
	// ErrYielded means that a better candidate is to lead. The duty should end what it is at soon: Commit refuses the ended context, but
	// takes context.WithoutCancel of it for as long as the duty has not returned.
	ErrYielded = errors.New("the leadership is yielded to a better candidate")
	// ErrLost means that the lock is not ours any more, or cannot be proved to be.
	ErrLost = consul.ErrLost
)

// ErrNoLeader is what Commit returns for a context that no duty got.
var ErrNoLeader = errors.New("the context is not that of a leader")

// DefaultPrefix is where elections are unless somebody says otherwise: where rcctl looks for them.
const DefaultPrefix = "rcfarm/"

// Defaults of Candidate.
const (
	DefaultPatience  = time.Second
	DefaultPingEvery = 2 * time.Minute
)

// Candidate says who takes part in which election.
type Candidate struct {
	Client  *consul.Client
	Session *consul.Session // of RunSession; it must outlive Run
	Prefix  string          // of all elections' keys, ends with a slash; DefaultPrefix when empty
	Lease   string          // name of what the candidates compete for
	ID      string          // of this candidate among those of the lease; stable

	BinaryVersion    string          // such as "1.19.0"; ballot.Unstamped when empty
	EmulationVersion string          // BinaryVersion when empty
	Strategy         ballot.Strategy // ballot.OldestEmulationVersion when empty

	// Uncoordinated takes the lock whenever it is free, without a record and without asking anybody. It is for fleets in which some do not
	// coordinate yet; who holds the lock so is left alone by the others.
	Uncoordinated bool

	Patience  time.Duration // how long answers are waited for; DefaultPatience when zero
	PingEvery time.Duration // how often the leader asks who is there; DefaultPingEvery when zero
	// OnEvent is told what happens, from one goroutine. It must not block. It may be nil.
	OnEvent func(Event)
}

// EventKind says what an Event is about.
type EventKind string

// The kinds of events.
const (
	Elected    EventKind = "elected"    // this candidate leads from now on
	Ended      EventKind = "ended"      // its duty has returned; Err is why its leadership ended, and what the duty returned
	Leader     EventKind = "leader"     // another one leads; empty: nobody does
	Opened     EventKind = "opened"     // this candidate has opened a round; Text says why
	Conditions EventKind = "conditions" // those that hold now, none in the end, as this candidate sees it
	Failed     EventKind = "failed"     // something that is tried again; Err is why
)

// Event is something that happened.
type Event struct {
	Kind       EventKind
	Leader     string // its id, as far as known
	Text       string
	Conditions []ballot.Condition
	Err        error
}

// complete fills in the defaults and returns what is wrong.
func (c *Candidate) complete() error {
	c.Prefix, c.BinaryVersion = cmp.Or(c.Prefix, DefaultPrefix), cmp.Or(c.BinaryVersion, ballot.Unstamped)
	c.EmulationVersion = cmp.Or(c.EmulationVersion, c.BinaryVersion)
	c.Strategy = cmp.Or(c.Strategy, ballot.OldestEmulationVersion)
	c.Patience, c.PingEvery = cmp.Or(c.Patience, DefaultPatience), cmp.Or(c.PingEvery, DefaultPingEvery)
	if c.OnEvent == nil {
		c.OnEvent = func(Event) {}
	}
	var errs field.Errors
	errs.CheckName("id", c.ID)
	if !strings.HasSuffix(c.Prefix, "/") || strings.HasPrefix(c.Prefix, "/") {
		errs.Add("prefix", c.Prefix, `a key prefix that ends with "/" and does not start with it, such as "rcfarm/"`)
	}
	if c.Client == nil || c.Session == nil {
		errs.Missing("session", "a client, and a session that its RunSession gave")
	}
	if err := c.record().Validate(); err != nil {
		var inner field.Errors
		if !errors.As(err, &inner) {
			return err
		}
		errs.Nest("", inner)
	}
	return errs.Err()
}

func (c *Candidate) record() *ballot.Record {
	return &ballot.Record{LeaseName: c.Lease, BinaryVersion: c.BinaryVersion, EmulationVersion: c.EmulationVersion, Strategy: c.Strategy}
}

// Run takes part in an election until ctx ends, which should be the context of the session's role. Whenever this candidate is chosen it
// runs the duty, whose context ends with the leadership. A duty that returns by itself ends Run: the lock is released, the record
// removed, and Run returns its error. Else Run returns the cause of ctx's end; consul.ErrWentBack when the store went back in time, which
// the role must return too; or an error that another try cannot mend, such as a token that may not write.
// When Run returns the duty has.
func Run(ctx context.Context, c Candidate, duty func(leaderCtx context.Context) error) error {
	if err := c.complete(); err != nil {
		return err
	}
	p := newParticipant(&c, duty)
	watching, stop := context.WithCancel(ctx)
	defer p.watches.Wait()
	defer stop()
	return p.run(watching)
}

// Commit carries out a transaction as the leader whose duty's context it gets: Consul refuses it unless that leader still holds the lock,
// in this very tenure. It takes two operations less than consul.MaxTxnOps. Its outcomes are those of consul.Client.Commit, with one thing
// settled: what returned consul.ErrUnknown has been carried out by then, or never will be, unless the error matches ErrLost or the
// context has ended. The indices are those of the written keys.
func Commit(leaderCtx context.Context, ops []consul.Op) (map[string]uint64, error) {
	t, ok := leaderCtx.Value(tenureKey{}).(*tenure)
	if !ok {
		return nil, ErrNoLeader
	}
	if leaderCtx.Err() != nil {
		return nil, context.Cause(leaderCtx)
	}
	return t.commit(leaderCtx, ops)
}
