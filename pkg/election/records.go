package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/election/ballot"
)

// answer writes our record, unless it is there and answers the present round.
func (p *participant) answer(ctx context.Context) error {
	round := &p.lease.Round
	if p.listed != nil && p.written {
		p.written = slices.ContainsFunc(p.listed, func(r record) bool { return r.ID == p.ID && r.Session == p.Session.Deleting })
	}
	if p.written && p.wrote == round.Nonce {
		return nil
	}
	rec := p.record()
	rec.Round, rec.RenewTime = round.Nonce, &ballot.Time{Time: time.Now()}
	if round.Nonce != "" {
		rec.PingTime = &round.At
	}
	if err := p.sameLease(ctx, rec); err != nil {
		return err
	}
	_, err := p.Client.Commit(ctx, []consul.Op{consul.Lock(p.candidate(p.ID), encode(rec), p.Session.Deleting)})
	switch {
	case denied(err):
		return fmt.Errorf("write the record of candidate %s: %w", p.ID, err)
	case errors.Is(err, consul.ErrRefused):
		p.OnEvent(Event{Kind: Failed, Err: fmt.Errorf("write the record of candidate %s: another process has it, or our session has ended: %w", p.ID, err)})
		p.patience.until(time.Now().Add(p.Patience))
		return nil
	case err != nil:
		p.failed(fmt.Errorf("write the record of candidate %s: %w", p.ID, err))
		return nil
	}
	p.written, p.wrote = true, round.Nonce
	if p.unwatched() {
		p.listed = nil
	}
	return nil
}

// sameLease refuses to write over a record of another lease.
func (p *participant) sameLease(ctx context.Context, rec *ballot.Record) error {
	if p.wrote != "" || p.written {
		return nil
	}
	there, err := p.Client.Get(ctx, p.candidate(p.ID), consul.Default)
	if err != nil {
		return nil //nolint:nilerr // nothing is there, or the write says what is wrong
	}
	before := ballot.DecodeCandidate(p.ID, there.Value, there.CreateIndex, there.Session)
	if before.Err == nil && before.Record.LeaseName != "" {
		err = before.Record.Merge(rec)
	}
	if err != nil {
		return fmt.Errorf("the record of candidate %s: %w", p.ID, err)
	}
	return nil
}

func denied(err error) bool {
	var refused *consul.RefusedError
	return errors.As(err, &refused) && refused.Denied()
}

// list reads the candidates, unless they are watched.
func (p *participant) list(ctx context.Context) error {
	if p.Uncoordinated || !p.unwatched() && p.listed != nil {
		return nil
	}
	pairs, err := p.Client.List(ctx, p.candidates(), consul.Default)
	switch {
	case errors.Is(err, consul.ErrFiltered):
		return fmt.Errorf("read the candidates of lease %s: %w", p.Lease, err)
	case err != nil:
		p.failed(err)
		return nil
	}
	p.listed = notNil(p.recordsOf(pairs))
	return nil
}

// open opens another round, over the one that is known.
func (p *participant) open(ctx context.Context, why string) error {
	next := p.lease.Next(nonce(), p.ID, why, ballot.Time{Time: time.Now()}, candidatesOf(p.listed))
	written, err := p.Client.Commit(ctx, []consul.Op{consul.CAS(p.round(), encode(next), p.lease.RoundIndex)})
	switch {
	case denied(err):
		return fmt.Errorf("open a round of lease %s: %w", p.Lease, err)
	case errors.Is(err, consul.ErrRefused):
		return nil // somebody else has opened one; the watch says so
	case err != nil:
		p.failed(fmt.Errorf("open a round of lease %s: %w", p.Lease, err))
		return nil
	}
	p.floor = written[p.round()]
	p.lease.Round, p.lease.RoundIndex, p.seen = next, p.floor, time.Now()
	p.OnEvent(Event{Kind: Opened, Text: why})
	p.patience.until(p.seen) // answer it at once
	return nil
}

// sweep removes records that no session holds: a restored snapshot brings them back.
func (p *participant) sweep(ctx context.Context) {
	var ops []consul.Op
	for _, r := range p.listed {
		if r.Session == "" && len(ops) < maxSwept {
			ops = append(ops, consul.DeleteCAS(p.candidate(r.ID), r.index))
		}
	}
	if len(ops) == 0 {
		return
	}
	if _, err := p.tenure.commit(ctx, ops); err != nil && !errors.Is(err, consul.ErrRefused) {
		p.failed(fmt.Errorf("remove records of the dead: %w", err))
	}
	p.listed = slices.DeleteFunc(p.listed, func(r record) bool { return r.Session == "" })
}

// maxSwept is how many records one transaction removes.
const maxSwept = 64

// watch keeps a mailbox at what is below a prefix, until ctx ends.
func (p *participant) watch(ctx context.Context, prefix string, o consul.WatchOptions, to *mailbox) {
	o.OnError = func(err error) { to.fail(err) }
	p.watches.Go(func() {
		_ = p.Client.WatchPrefix(ctx, prefix, o, func(snap consul.Snapshot) error { // it ends with ctx only
			to.put(snap)
			return nil
		})
	})
}

// watchRecords begins to watch the candidates, or ends it.
func (p *participant) watchRecords(ctx context.Context, wanted bool) {
	if !wanted {
		p.unwatchRecords()
		return
	}
	if !p.unwatched() {
		return
	}
	watching, stop := context.WithCancel(ctx)
	p.records = newMailbox() // nothing of an earlier watch
	p.unwatch = stop
	p.watch(watching, p.candidates(), consul.WatchOptions{}, p.records)
}

func (p *participant) unwatched() bool { return p.unwatch == nil }

func (p *participant) unwatchRecords() {
	if p.unwatch != nil {
		p.unwatch()
		p.unwatch = nil
		p.records = newMailbox()
	}
}
