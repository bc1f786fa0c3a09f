// Package election chooses one leader among the processes of a program, which may have different versions. All
// candidates write records, and compute the same choice from them (package ballot). If candidates have seen different
// records, a lock in Consul decides.
//
// Run takes part as a candidate. While it leads, it runs the duty with a context for this leadership, which ends with
// the cause ErrYielded or ErrLost. Then the duty must return. A leader writes with Commit. Consul refuses the write if
// the leader does not hold the lock any more. So a leader that was suspended, cut off or replaced cannot change
// anything.
//
// docs/adr/0021-elections.md has the reasons, docs/examples/cron is a program that uses the package.
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

// Why a leader's context ended, besides the end of Run's context.
var (
	// ErrYielded means that a better candidate must lead. The duty should end soon. For last writes, until the duty has
	// returned, Commit accepts context.WithoutCancel of its context.
	ErrYielded = errors.New("the leadership is yielded to a better candidate")
	// ErrLost means that this process lost the lock, or cannot prove that it still holds it.
	ErrLost = consul.ErrLost
)

// ErrNoLeader is returned by Commit for a context that is not from a duty.
var ErrNoLeader = errors.New("the context is not that of a leader")

// DefaultPrefix is the default prefix of elections, which rcctl uses.
const DefaultPrefix = "rcfarm/"

// Defaults of Candidate.
const (
	DefaultPatience  = time.Second
	DefaultPingEvery = 2 * time.Minute
)

// Candidate is a candidate and its election.
type Candidate struct {
	Client  *consul.Client
	Session *consul.Session // of RunSession; it must outlive Run
	Prefix  string          // of the keys of all elections, ends with a slash; DefaultPrefix if empty
	Lease   string          // name of the lease for which the candidates compete
	ID      string          // of this candidate; unique among the candidates; the same after a restart

	BinaryVersion    string          // such as "1.19.0"; empty: ballot.Unstamped
	EmulationVersion string          // empty: BinaryVersion
	Strategy         ballot.Strategy // empty: ballot.OldestEmulationVersion

	// Uncoordinated is for programs that do not take part in elections yet. The process takes a free lock at once,
	// without a record and a round, and candidates do not take the lock from it.
	Uncoordinated bool

	Patience  time.Duration // how long to wait for answers; zero: DefaultPatience
	PingEvery time.Duration // how often the leader opens a round; zero: DefaultPingEvery
	// OnEvent is called for each event, from one goroutine. It must not block. It may be nil.
	OnEvent func(Event)
}

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	Elected EventKind = "elected" // this candidate leads from now on
	// Ended means that the duty has returned. Err is why the leadership ended, and what the duty returned.
	Ended      EventKind = "ended"
	Leader     EventKind = "leader"     // another candidate leads; if Event.Leader is empty, no candidate leads
	Opened     EventKind = "opened"     // this candidate has opened a round; Text is why
	Conditions EventKind = "conditions" // see Event.Conditions
	Failed     EventKind = "failed"     // an attempt that will be repeated; Err is why
)

// Event is something that happened in the election.
type Event struct {
	Kind       EventKind
	Leader     string // id of the leader, as far as known
	Text       string
	Conditions []ballot.Condition // that are true now for this candidate; empty: none
	Err        error
}

// complete sets the defaults and returns what is wrong.
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
	return &ballot.Record{
		LeaseName: c.Lease, BinaryVersion: c.BinaryVersion, EmulationVersion: c.EmulationVersion,
		Strategy: c.Strategy,
	}
}

// Run takes part in an election until ctx, which should be the context of the session's role, ends. While this
// candidate leads, it runs the duty. If the duty returns before its context ends, Run gives the lease up, and returns
// the duty's error. Otherwise Run returns, after the duty, one of these:
//   - the cause of ctx's end;
//   - consul.ErrWentBack if the store went back in time; the role must return it too;
//   - an error that another try cannot mend, for example if the token is not allowed to write.
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

// Commit carries out a transaction of at most consul.MaxTxnOps-2 operations. leaderCtx is the context of a duty. Consul
// refuses the transaction if the leader does not hold the lock any more in the same tenure. Commit returns the errors
// of consul.Client.Commit. But after consul.ErrUnknown the transaction cannot land later, unless the error also matches
// ErrLost, or the context has ended.
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
