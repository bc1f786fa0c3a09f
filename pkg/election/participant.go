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

func nonce() string { return rand.Text() }

// Only the goroutine of run uses a participant. Other goroutines run the watches and the duty.
type participant struct {
	*Candidate
	keys
	duty    func(context.Context) error
	watches sync.WaitGroup
	leases  *mailbox           // deliveries of the watch below lease/
	records *mailbox           // deliveries of the watch below candidates/, if that watch runs
	unwatch context.CancelFunc // ends the watch below candidates/; nil: that watch does not run

	known   bool // the lease has been read
	lease   ballot.Lease
	floor   uint64    // index of this candidate's last write to the lease; older snapshots are ignored
	seen    time.Time // when the lease's round was first seen
	first   string    // nonce of the round that existed at the start
	listed  []record  // the records of candidates that were read last; nil: they must be read
	wrote   string    // nonce of the round that this candidate's record answers
	written bool      // this candidate has a record
	verdict ballot.Verdict
	tenure  *tenure // set from the acquisition of the lock until the duty has returned
	taking  bool    // an acquisition of the lock may have landed
	patience
	notified struct { // the last notifications
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

const retryPause = 250 * time.Millisecond

// run returns when ctx ends, when the duty returns by itself, or after an error that another try cannot mend.
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

// doneError means that the duty has returned although its leadership had not ended.
type doneError struct{ err error }

func (d *doneError) Error() string { return fmt.Sprintf("the duty has ended: %v", d.err) }

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

func (p *participant) received(from *mailbox) *consul.Snapshot {
	snap, err := from.take()
	if err != nil {
		p.failed(err)
	}
	return snap
}

// failed reports a failed request, and makes the next step happen after retryPause.
func (p *participant) failed(err error) {
	p.OnEvent(Event{Kind: Failed, Err: err})
	p.patience.until(time.Now().Add(retryPause))
}

func (p *participant) seeRecords(snap *consul.Snapshot) error {
	if snap == nil {
		return nil
	}
	p.listed = p.recordsOf(snap.Pairs)
	return wentBack(snap)
}

func wentBack(snap *consul.Snapshot) error {
	if snap.WentBack {
		return fmt.Errorf("%w: the records of an election are of an earlier time", consul.ErrWentBack)
	}
	return nil
}

func (p *participant) seeLease(snap *consul.Snapshot) error {
	if snap == nil {
		return nil
	}
	if err := wentBack(snap); err != nil {
		return err
	}
	if snap.Index < p.floor {
		return nil // the snapshot is older than this candidate's last write
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

func (p *participant) step(ctx context.Context) error {
	p.notifyLeader()
	if p.tenure == nil && p.lease.Session == p.Session.Releasing {
		return p.release(ctx, ballot.Holder{Last: p.ID}) // an acquisition landed late, so no duty was started for it
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

func (p *participant) judge() {
	over := time.Since(p.seen) >= p.Patience
	p.verdict = ballot.Elect(candidatesOf(p.listed), p.lease.Pings(p.Lease, p.first, over))
	p.notifyConditions()
}

func (p *participant) act(ctx context.Context) error {
	p.judge()
	v, held := &p.verdict, p.lease.Held()
	// If this candidate could not write its record, another process has this id.
	chosen := v.Action == ballot.Choose && v.Chosen == p.ID && p.written
	// While this candidate waits for answers, or for the chosen candidate to take the lock, it must see new answers,
	// and which candidates die.
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
	// Another candidate must act on the verdict, or no candidate can.
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

// lead also acts if the duty has not returned yet.
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

// dutyEnded releases the lock, unless the lock is lost.
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
		return nil // the lock is not held by this tenure any more
	}
	left := ballot.Holder{Last: p.ID}
	if v := &p.verdict; v.Action == ballot.Choose {
		left.YieldedTo, left.Round = v.Chosen, p.lease.Round.Nonce
	}
	return p.release(ctx, left)
}

func (p *participant) acquire(ctx context.Context) error {
	holder := ballot.Holder{ID: p.ID, Round: p.lease.Round.Nonce, Since: &ballot.Time{Time: time.Now()}}
	p.taking = true
	fence, err := p.Client.Locks.Acquire(ctx, p.holder(), p.Session.Releasing, func() []byte { return valueOf(holder) })
	var other *consul.LockedError
	switch {
	case errors.As(err, &other):
		p.taking = false
		return nil // the watch will show the holder
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

func (p *participant) release(ctx context.Context, left ballot.Holder) error {
	written, err := p.Client.Commit(ctx, []consul.Op{consul.Unlock(p.holder(), valueOf(left), p.Session.Releasing)})
	switch {
	case errors.Is(err, consul.ErrRefused):
		return nil // another candidate holds the lock; the watch will show which
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

// leave ends the duty, and removes the lock and the record. It returns why, or the duty's error if it returned by
// itself.
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
		remove = []consul.Op{
			consul.CheckSession(p.candidate(p.ID), p.Session.Deleting),
			consul.Delete(p.candidate(p.ID)),
		}
	}
	if byItself || !errors.Is(why, ErrLost) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*p.Patience)
		defer cancel()
		// One transaction, because if the lock were free while the record still exists, other candidates would wait for
		// this candidate's answer.
		if p.commitDefinitely(ctx, slices.Concat(unlock, remove)) {
			p.commitDefinitely(ctx, unlock)
			p.commitDefinitely(ctx, remove)
		}
	}
	return why
}

// commitDefinitely tries a transaction until its outcome is known, or until ctx ends; then the end of the session has
// the same effect.
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

func (p *participant) notifyLeader() {
	leader := ""
	if p.lease.Held() {
		leader = p.lease.Holder.ID
	}
	if leader != p.notified.leader {
		p.notified.leader = leader
		p.OnEvent(Event{Kind: Leader, Leader: leader})
	}
}

func (p *participant) notifyConditions() {
	if now := p.verdict.Conditions; !slices.Equal(now, p.notified.conditions) {
		p.notified.conditions = now
		p.OnEvent(Event{Kind: Conditions, Leader: p.notified.leader, Conditions: now})
	}
}
