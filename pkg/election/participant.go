package election

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// nonce returns a text that nobody has used before.
func nonce() string { return rand.Text() }

// participant is one candidate's part in an election. One goroutine has it; others only watch, and run the duty.
type participant struct {
	*Candidate
	keys
	duty    func(context.Context) error
	watches sync.WaitGroup
	leases  *mailbox           // what is below lease/
	records *mailbox           // what is below candidates/, while that is watched
	unwatch context.CancelFunc // nil while it is not

	known   bool // the lease has been read
	lease   ballot.Lease
	floor   uint64    // index of the last write of our own to the lease; what is older says nothing
	seen    time.Time // when the lease's round was
	first   string    // nonce of the round that was there at the start
	listed  []record  // the candidates as last read
	wrote   string    // nonce that our record answers
	written bool      // there is a record of ours
	verdict ballot.Verdict
	tenure  *tenure // while leading, and until the duty has returned
	taking  bool    // an acquisition may have landed
	patience
	notified struct { // last
		leader     string
		conditions []ballot.Condition
	}
}

func newParticipant(c *Candidate, duty func(context.Context) error) *participant {
	return &participant{
		Candidate: c, keys: keysOf(c.Prefix, c.Lease), duty: duty,
		leases: newMailbox(), records: newMailbox(),
	}
}

// retryPause is how long a failed request waits for its next try.
const retryPause = 250 * time.Millisecond

// run takes part until ctx ends, the duty ends by itself, or nothing can be mended.
func (p *participant) run(ctx context.Context) error {
	p.watch(ctx, p.keys.lease(), consul.WatchOptions{Released: true}, p.leases)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		err := p.next(ctx, timer)
		if err == nil && p.known {
			err = p.step(ctx)
		}
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return p.leave(ctx, err)
		}
		timer.Reset(time.Until(p.wake()))
	}
}

// doneError says that the duty has returned by itself.
type doneError struct{ err error }

func (e *doneError) Error() string { return fmt.Sprintf("the duty has ended: %v", e.err) }

// next waits for the next thing to happen.
func (p *participant) next(ctx context.Context, timer *time.Timer) error {
	var done chan struct{}
	if p.tenure != nil {
		done = p.tenure.done
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.leases.filled:
		return p.seeLease(p.received(p.leases))
	case <-p.records.filled:
		return p.seeRecords(p.received(p.records))
	case <-done:
		return p.dutyEnded(ctx)
	case <-timer.C:
		return p.list(ctx)
	}
}

// received takes what a watch has delivered, and tells of its errors.
func (p *participant) received(from *mailbox) *consul.Snapshot {
	snap, err := from.take()
	if err != nil {
		p.failed(err)
	}
	return snap
}

// failed tells of something that is tried again soon.
func (p *participant) failed(err error) {
	p.OnEvent(Event{Kind: Failed, Err: err})
	p.patience.until(time.Now().Add(retryPause))
}

func (p *participant) seeRecords(snap *consul.Snapshot) error {
	if snap == nil {
		return nil
	}
	p.listed = notNil(p.recordsOf(snap.Pairs))
	return wentBack(snap)
}

func notNil(records []record) []record {
	if records == nil {
		return []record{}
	}
	return records
}

func wentBack(snap *consul.Snapshot) error {
	if snap.WentBack {
		return fmt.Errorf("%w: the records of an election are of an earlier time", consul.ErrWentBack)
	}
	return nil
}

// seeLease takes in what stands on the lease.
func (p *participant) seeLease(snap *consul.Snapshot) error {
	if snap == nil {
		return nil
	}
	if err := wentBack(snap); err != nil {
		return err
	}
	if snap.Index < p.floor {
		return nil // it is from before what we wrote
	}
	was := p.lease
	p.lease = p.leaseOf(snap.Pairs)
	p.listed = nil
	switch {
	case !p.known:
		p.known, p.first, p.seen = true, p.lease.Round.Nonce, time.Now()
	case p.lease.Round.Nonce != was.Round.Nonce:
		p.seen = time.Now()
		p.patience.rest()
	}
	if p.lease.Session != was.Session {
		p.patience.reset()
	}
	return nil
}

// step does what follows from what is known now.
func (p *participant) step(ctx context.Context) error {
	p.tellLeader()
	if p.tenure == nil && p.lease.Session == p.Session.Releasing {
		return p.release(ctx, ballot.Holder{Last: p.ID}) // an acquisition landed that nobody works under
	}
	if p.tenure != nil && !p.tenure.over() && p.lease.Session != p.Session.Releasing {
		p.tenure.end(fmt.Errorf("%w: the lock of lease %s is not ours any more", ErrLost, p.Lease))
	}
	if p.Uncoordinated {
		if p.tenure == nil && !p.lease.Held() {
			return p.acquire(ctx)
		}
		return nil
	}
	if err := p.answer(ctx); err != nil {
		return err
	}
	if p.listed == nil {
		if err := p.list(ctx); err != nil || p.listed == nil {
			return err
		}
	}
	return p.act(ctx)
}

// judge computes the verdict of now.
func (p *participant) judge() {
	over := time.Since(p.seen) >= p.Patience
	p.verdict = ballot.Elect(candidatesOf(p.listed), p.lease.Pings(p.Lease, p.first, over))
	p.tellConditions()
}

// act does what follows from the verdict.
func (p *participant) act(ctx context.Context) error {
	p.judge()
	v, held := &p.verdict, p.lease.Held()
	chosen := v.Action == ballot.Choose && v.Chosen == p.ID && p.written // else another process has our id
	// Who waits for answers, or for a chosen one to take the lock, must see who answers, and who is gone.
	p.watchRecords(ctx, !held || v.Action == ballot.Wait)
	switch {
	case p.tenure != nil:
		return p.lead(ctx)
	case chosen && !held:
		return p.acquire(ctx)
	case v.Action == ballot.Ask && p.written && (!held || slices.Contains(v.Above, p.ID)):
		return p.open(ctx, map[bool]string{true: "a better candidate", false: "the lease is free"}[held])
	case v.Action == ballot.Wait:
		p.patience.until(p.seen.Add(p.Patience))
		return nil
	}
	// The verdict is one that somebody else has to follow, or nobody can.
	stuck := v.Action == ballot.Choose || v.Action == ballot.Leave && len(v.Silent) > 0
	if held {
		stuck = chosen
	}
	switch {
	case !stuck:
		p.patience.rest()
	case p.patience.over(p.Patience):
		return p.open(ctx, "the chosen one has not taken the lease")
	}
	return nil
}

// lead is act for the leader, also while its duty ends.
func (p *participant) lead(ctx context.Context) error {
	v := &p.verdict
	switch {
	case p.tenure.over():
		return nil
	case v.Action == ballot.Choose && v.Chosen != p.ID:
		p.tenure.end(ErrYielded)
		return nil
	case v.Action == ballot.Wait:
		p.patience.until(p.seen.Add(p.Patience))
		return nil
	}
	p.sweep(ctx)
	if due := p.seen.Add(p.PingEvery); time.Now().Before(due) {
		p.patience.until(due)
		return nil
	}
	return p.open(ctx, "to see who is there")
}

// dutyEnded is what follows when the duty has returned.
func (p *participant) dutyEnded(ctx context.Context) error {
	ended := p.tenure.why()
	if ended == nil {
		return &doneError{p.tenure.err}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.OnEvent(Event{Kind: Ended, Err: p.tenure.ending(ended)})
	p.tenure = nil
	if errors.Is(ended, ErrLost) {
		return nil // whoever has the lock has it
	}
	left := ballot.Holder{Last: p.ID}
	if v := &p.verdict; v.Action == ballot.Choose {
		left.YieldedTo, left.Round = v.Chosen, p.lease.Round.Nonce
	}
	return p.release(ctx, left)
}

// acquire takes the lock, and begins the duty.
func (p *participant) acquire(ctx context.Context) error {
	holder := ballot.Holder{ID: p.ID, Round: p.lease.Round.Nonce, Since: &ballot.Time{Time: time.Now()}}
	p.taking = true
	fence, err := p.Client.Locks.Acquire(ctx, p.holder(), p.Session.Releasing, func() []byte { return valueOf(holder) })
	var other *consul.LockedError
	switch {
	case errors.As(err, &other):
		p.taking = false
		return nil // the watch says who
	case err != nil:
		return fmt.Errorf("take lease %s: %w", p.Lease, err)
	}
	p.floor = fence.Index
	p.lease.Session, p.lease.Holder, p.lease.HolderIndex = fence.Session, holder, fence.Index
	p.patience.reset()
	p.unwatchRecords()
	p.tenure = begin(ctx, p.Candidate, holder, fence, p.duty)
	p.OnEvent(Event{Kind: Elected, Leader: p.ID})
	p.notified.leader = p.ID
	return nil
}

// release gives the lock up.
func (p *participant) release(ctx context.Context, left ballot.Holder) error {
	written, err := p.Client.Commit(ctx, []consul.Op{consul.Unlock(p.holder(), valueOf(left), p.Session.Releasing)})
	switch {
	case errors.Is(err, consul.ErrRefused):
		return nil // it is somebody else's; the watch says whose
	case err != nil:
		p.failed(fmt.Errorf("give lease %s up: %w", p.Lease, err))
		return nil
	}
	p.taking = false
	p.floor = written[p.holder()]
	p.lease.Session, p.lease.Holder, p.lease.HolderIndex = "", left, p.floor
	p.listed = nil
	return nil
}

// leave ends the part in the election: the duty, the lock and the record. It returns why.
func (p *participant) leave(ctx context.Context, why error) error {
	p.unwatchRecords()
	var unlock, remove []consul.Op
	var done *doneError
	byItself := errors.As(why, &done)
	if t := p.tenure; t != nil {
		t.end(why)
		<-t.done
		if byItself {
			why = done.err
		}
		p.OnEvent(Event{Kind: Ended, Err: t.ending(why)})
	}
	if p.taking {
		unlock = []consul.Op{consul.Unlock(p.holder(), valueOf(ballot.Holder{Last: p.ID}), p.Session.Releasing)}
	}
	if p.written {
		remove = []consul.Op{consul.CheckSession(p.candidate(p.ID), p.Session.Deleting), consul.Delete(p.candidate(p.ID))}
	}
	if byItself || !errors.Is(why, ErrLost) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*p.Patience)
		defer cancel()
		// Together: with the record there and the lock free, the others would wait for an answer.
		if p.commitDefinitely(ctx, slices.Concat(unlock, remove)) {
			p.commitDefinitely(ctx, unlock)
			p.commitDefinitely(ctx, remove)
		}
	}
	return why
}

// commitDefinitely tries a transaction until its outcome is known, or ctx ends: the end of the session then does it. It returns whether it was refused.
func (p *participant) commitDefinitely(ctx context.Context, ops []consul.Op) (refused bool) {
	for len(ops) > 0 {
		_, err := p.Client.Commit(ctx, ops)
		if err == nil || errors.Is(err, consul.ErrRefused) {
			return err != nil
		}
		p.OnEvent(Event{Kind: Failed, Err: fmt.Errorf("leave the election: %w", err)})
		if wait.Pause(ctx, retryPause) != nil {
			return false
		}
	}
	return false
}

// tellLeader tells who leads, where that is news.
func (p *participant) tellLeader() {
	leader := ""
	if p.lease.Held() {
		leader = p.lease.Holder.ID
	}
	if leader != p.notified.leader {
		p.notified.leader = leader
		p.OnEvent(Event{Kind: Leader, Leader: leader})
	}
}

// tellConditions tells which conditions hold, where they are others than before.
func (p *participant) tellConditions() {
	if now := p.verdict.Conditions; !slices.Equal(now, p.notified.conditions) {
		p.notified.conditions = now
		p.OnEvent(Event{Kind: Conditions, Leader: p.notified.leader, Conditions: now})
	}
}
