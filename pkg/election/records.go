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

// answer writes this candidate's record, unless it already answers the present round.
func (p *participant) answer(ctx context.Context) error {
	round := &p.lease.Round
	if p.listed != nil && p.written {
		p.written = slices.ContainsFunc(p.listed,
			func(r record) bool { return r.ID == p.ID && r.Session == p.Session.Deleting })
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
		p.OnEvent(Event{Kind: Failed, Err: fmt.Errorf(
			"write the record of candidate %s: another process has it, or this session has ended: %w", p.ID, err)})
		p.patience.until(time.Now().Add(p.Patience))
		return nil
	case err != nil:
		p.failed(fmt.Errorf("write the record of candidate %s: %w", p.ID, err))
		return nil
	}
	p.written, p.wrote = true, round.Nonce
	if p.unwatch == nil {
		p.listed = nil
	}
	return nil
}

// sameLease returns an error if the present record of this candidate is of another lease.
func (p *participant) sameLease(ctx context.Context, rec *ballot.Record) error {
	if p.wrote != "" || p.written {
		return nil
	}
	there, err := p.Client.Get(ctx, p.candidate(p.ID), consul.Default)
	if err != nil {
		return nil //nolint:nilerr // there is none, or the write will return the error
	}
	before := ballot.DecodeCandidate(p.ID, there.Value, there.CreateIndex, there.Session)
	if err := before.Record.MayBecome(rec); before.Err == nil && err != nil {
		return fmt.Errorf("the record of candidate %s: %w", p.ID, err)
	}
	return nil
}

func denied(err error) bool {
	var refused *consul.RefusedError
	return errors.As(err, &refused) && refused.Denied()
}

// list reads the candidates, unless a watch reads them.
func (p *participant) list(ctx context.Context) error {
	if p.Uncoordinated || p.unwatch != nil && p.listed != nil {
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
	p.listed = p.recordsOf(pairs)
	return nil
}

// open opens the next round, if no other candidate has opened one that is not known here.
func (p *participant) open(ctx context.Context, why string) error {
	next := p.lease.Next(nonce(), p.ID, why, ballot.Time{Time: time.Now()}, candidatesOf(p.listed))
	written, err := p.Client.Commit(ctx, []consul.Op{consul.CAS(p.round(), encode(next), p.lease.RoundIndex)})
	switch {
	case denied(err):
		return fmt.Errorf("open a round of lease %s: %w", p.Lease, err)
	case errors.Is(err, consul.ErrRefused):
		return nil // another candidate has opened one; the watch will show it
	case err != nil:
		p.failed(fmt.Errorf("open a round of lease %s: %w", p.Lease, err))
		return nil
	}
	p.floor = written[p.round()]
	p.lease.Round, p.lease.RoundIndex, p.seen = next, p.floor, time.Now()
	p.OnEvent(Event{Kind: Opened, Text: why})
	p.patience.until(p.seen) // this candidate answers the round at once
	return nil
}

// sweep removes the records of candidates without a session, which a restored snapshot can bring back.
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

const maxSwept = 64

func (p *participant) watch(ctx context.Context, prefix string, o consul.WatchOptions, to *mailbox) {
	o.OnError = func(err error) { to.fail(err) }
	p.watches.Go(func() {
		_ = p.Client.WatchPrefix(ctx, prefix, o, func(snap consul.Snapshot) error { // the watch ends only with ctx
			to.put(snap)
			return nil
		})
	})
}

func (p *participant) watchRecords(ctx context.Context, wanted bool) {
	if !wanted {
		p.unwatchRecords()
		return
	}
	if p.unwatch != nil {
		return
	}
	watching, stop := context.WithCancel(ctx)
	p.records = newMailbox() // it must not have deliveries of an earlier watch
	p.unwatch = stop
	p.watch(watching, p.candidates(), consul.WatchOptions{}, p.records)
}

func (p *participant) unwatchRecords() {
	if p.unwatch != nil {
		p.unwatch()
		p.unwatch = nil
		p.records = newMailbox()
	}
}
