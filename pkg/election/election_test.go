package election_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/election/ballot"
)

func TestOneLeads(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start("a", "1.19", nil)
	f.leads("a")
	s := f.state()
	if len(s.Candidates) != 1 || s.Verdict.Action != ballot.Keep || s.Lease.Holder.Round != s.Lease.Round.Nonce ||
		s.Candidates[0].Record.Round != s.Lease.Round.Nonce {
		t.Errorf("%+v", s)
	}
	// When a stops, it releases the lock and removes its record. Only the name of the last holder is left.
	a.stop()
	s = f.state()
	if len(s.Candidates) != 0 || s.Lease.Held() || s.Lease.Holder.Last != "a" {
		t.Errorf("%+v", s)
	}
}

// If a candidate of a lower version starts, the leader yields to it. The new leader takes the lock at once, without
// another round.
func TestHandOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start("a", "1.19", nil)
	f.leads("a")
	b := f.start("b", "1.18", nil)
	f.leads("b")
	if ended := a.ended(); len(ended) != 1 || !errors.Is(ended[0], election.ErrYielded) {
		t.Errorf("a ended with %v", ended)
	}
	if s := f.state(); s.Lease.Holder.Round != s.Lease.Round.Nonce || s.Lease.Round.OpenedBy != "b" {
		t.Errorf("%+v", s.Lease)
	}
	if opened := b.of(election.Opened); len(opened) != 1 || opened[0].Text != "a better candidate" {
		t.Errorf("b opened %+v", opened)
	}
	f.start("c", "1.20", nil)
	b.stop()
	f.leads("a")
	f.neverTwo()
}

// A leader that must yield releases the lock only when its duty has returned.
func TestTheDutyEndsFirst(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	finish := make(chan struct{})
	a := f.run("a", "1.19", nil, func(ctx context.Context) error {
		<-ctx.Done()
		<-finish
		// The duty can finish its last write under the fence.
		if _, err := election.Commit(ctx, []consul.Op{consul.Set(f.prefix+"log", nil)}); !errors.Is(err,
			election.ErrYielded) {
			t.Errorf("commit under a context that has ended: %v", err)
		}
		_, err := election.Commit(context.WithoutCancel(ctx),
			[]consul.Op{consul.Set(f.prefix+"log", []byte("finished"))})
		return err
	})
	f.leads("a")
	b := f.start("b", "1.18", nil)
	consultest.Eventually(t, patient, func() error { // b has opened a round, and later another one
		if len(b.of(election.Opened)) < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	if leader, _ := f.state().Leader(); leader != "a" {
		t.Errorf("%q has the lock while the duty of a lasts", leader)
	}
	close(finish)
	f.leads("b")
	if ended := a.ended(); len(ended) != 1 || ended[0].Error() != election.ErrYielded.Error() {
		t.Errorf("a ended with %v", ended)
	}
	f.neverTwo()
}

func TestTheOlderNeverAnswers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.silent("z", "1.17")
	a := f.start("a", "1.19", nil)
	f.leads("a")
	b := f.start("b", "1.18", nil)
	f.leads("b")
	// The leader stays the same, and no other candidate opens rounds again and again. Only the leader opens its regular
	// rounds. The test uses them as a clock.
	b.stop()
	f.leads("a")
	a.stop()
	// A candidate that a busy machine delays for longer than Patience counts as silent.
	often := func(c *election.Candidate) { c.Patience, c.PingEvery = time.Second, 200*time.Millisecond }
	d, e := f.start("d", "1.19", often), f.start("e", "1.20", often)
	f.leads("d")
	consultest.Eventually(t, patient, func() error {
		if len(d.of(election.Opened)) < 6 {
			return errors.New("few looks around")
		}
		return nil
	})
	if n, m := len(d.of(election.Elected)), len(e.of(election.Elected)); n != 1 || m > 1 {
		t.Errorf("d was elected %d times, e %d times", n, m)
	}
	if opened := e.of(election.Opened); len(opened) > 3 { // at its start
		t.Errorf("e opened %+v", opened)
	}
	f.neverTwo()
}

func TestAllSilent(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.silent("y", "1.18")
	f.silent("z", "1.17")
	s := f.state()
	if conds := s.Verdict.Conditions; s.Verdict.Action != ballot.Ask || len(conds) != 0 {
		t.Errorf("%+v", s.Verdict)
	}
	f.commit(s.Unpin("test")...) // no candidate is pinned, so there are no operations
	ops, err := s.Pin("test", "y")
	if err != nil {
		t.Fatal(err)
	}
	f.commit(ops...)
	if s = f.state(); s.Verdict.Action != ballot.Wait {
		t.Errorf("just asked: %+v", s.Verdict)
	}
	consultest.Eventually(t, patient, func() error {
		s := f.state()
		if conds := s.Verdict.Conditions; s.Verdict.Action != ballot.Leave ||
			!slices.ContainsFunc(conds, func(c ballot.Condition) bool { return c.Type == ballot.AllSilent }) {
			return fmt.Errorf("%+v", s.Verdict)
		}
		return nil
	})
}

func TestTheLockIsDeleted(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start("a", "1.18", nil)
	f.leads("a")
	f.start("b", "1.19", nil)
	f.commit(consul.Delete(f.key("lease/holder")))
	consultest.Eventually(t, patient, func() error {
		if ended := a.ended(); len(ended) == 0 || !errors.Is(ended[0], election.ErrLost) {
			return errors.New("a does not know")
		}
		return nil
	})
	f.leads("a")
	f.commit(consul.DeleteTree(f.prefix + "elections/")) // all keys of elections, like a wipe
	consultest.Eventually(t, patient, func() error {
		if len(a.ended()) < 2 {
			return errors.New("a does not know")
		}
		return nil
	})
	f.leads("a")
	consultest.Eventually(t, patient, func() error {
		if s := f.state(); len(s.Candidates) != 2 {
			return errors.New("the records are not back")
		}
		return nil
	})
}

func TestTwoOfThreeDie(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a, b := f.start("a", "1.17", nil), f.start("b", "1.18", nil)
	f.leads("a")
	f.start("c", "1.19", nil)
	b.kill()
	a.kill()
	consultest.Eventually(t, patient, func() error {
		if leader, _ := f.state().Leader(); leader != "c" {
			return errors.New("c does not lead")
		}
		return nil
	})
	if s := f.state(); len(s.Candidates) != 1 {
		t.Errorf("%+v", s.Candidates)
	}
}

// If a leader's session has ended, and the leader does not know this yet, Consul refuses its writes.
func TestADeposedLeaderWritesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	leading := make(chan context.Context, 1)
	goOn := make(chan struct{})
	a := f.run("a", "1.17", nil, func(ctx context.Context) error {
		select {
		case leading <- ctx:
			<-goOn
		default: // this is the next tenure
			<-ctx.Done()
		}
		return context.Cause(ctx)
	})
	ctx := <-leading
	leading <- nil
	f.start("b", "1.18", nil)
	a.proxy.Set(consultest.Always(consultest.CutBefore))
	f.destroySessions(a)
	consultest.Eventually(t, patient, func() error {
		if leader, _ := f.state().Leader(); leader != "b" {
			return errors.New("b does not lead")
		}
		return nil
	})
	a.proxy.Set(nil)
	_, err := election.Commit(context.WithoutCancel(ctx), []consul.Op{consul.Set(f.prefix+"log", []byte("late"))})
	if !errors.Is(err, election.ErrLost) {
		t.Errorf("a late write: %v", err)
	}
	if _, err := f.client.Get(t.Context(), f.prefix+"log", consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
		t.Errorf("it is there: %v", err)
	}
	close(goOn)
	f.leads("a") // with a new session, because 1.17 comes before 1.18
}

// A record without a session, for example after a restore, does not take part. The leader removes it.
func TestRecordsOfTheDeadAreRemoved(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.commit(consul.Set(f.key("candidates/dead"),
		[]byte(
			`{"lease_name":"nightly","binary_version":"1.0.0","emulation_version":"1.0.0","strategy":"OldestEmulationVersion"}`)))
	f.start("a", "1.19", nil)
	f.leads("a")
	consultest.Eventually(t, patient, func() error {
		if s := f.state(); len(s.Candidates) != 1 {
			return errors.New("it is there still")
		}
		return nil
	})
}

func TestYieldAndPin(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start("a", "1.18", nil)
	f.leads("a")
	if _, _, err := f.state().Yield("op"); !errors.Is(err, election.ErrPointless) {
		t.Errorf("yield to nobody: %v", err)
	}
	f.start("b", "1.19", nil)
	f.start("c", "1.20", nil)
	consultest.Eventually(t, patient, func() error {
		if len(f.state().Candidates) != 3 {
			return errors.New("not all are there")
		}
		return nil
	})
	ops, leader, err := f.state().Yield("op")
	if err != nil || leader != "a" {
		t.Fatal(leader, err)
	}
	f.commit(ops...)
	f.leads("b")

	ops, err = f.state().Pin("op", "c")
	if err != nil {
		t.Fatal(err)
	}
	f.commit(ops...)
	f.leads("c")
	if s := f.state(); s.Lease.Round.Pin != "c" || len(s.Lease.Round.Without) != 1 {
		t.Errorf("%+v", s.Lease.Round)
	}
	if _, _, err := f.state().Yield("op"); !errors.Is(err, election.ErrPointless) {
		t.Errorf("a pinned one yields: %v", err)
	}
	if _, err := f.state().Pin("op", "x"); !errors.Is(err, election.ErrPointless) {
		t.Errorf("pin of nobody: %v", err)
	}
	f.commit(f.state().Unpin("op")...)
	f.leads("b") // a has yielded, until it starts again
	a.stop()
	f.start("a", "1.18", nil)
	f.leads("a")
	f.neverTwo()
}

func TestConflict(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	a := f.start("a", "1.19", nil)
	f.leads("a")
	b := f.start("b", "1.19", func(c *election.Candidate) { c.Strategy = ballot.Newest })
	c := f.start("c", "1.18", nil)
	inConflict := func(m *member) error {
		told := m.of(election.Conditions)
		if len(told) == 0 ||
			!slices.ContainsFunc(told[len(told)-1].Conditions,
				func(c ballot.Condition) bool { return c.Type == ballot.StrategyConflict }) {
			return errors.New(m.id + " knows of no conflict")
		}
		return nil
	}
	consultest.Eventually(t, patient, func() error { return errors.Join(inConflict(b), inConflict(c)) })
	f.leads("a")
	// While there is a conflict, no candidate is elected. When it is over, a candidate is elected.
	a.stop()
	f.leads("b") // the highest version has the strategy Newest
	f.neverTwo()
}

func TestALockRaceBesides(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	race := func(c *election.Candidate) { c.Uncoordinated = true }
	r := f.start("r", "1.17", race)
	f.leads("r")
	if s := f.state(); len(s.Candidates) != 0 || s.Verdict.Action != ballot.Leave {
		t.Errorf("%+v", s)
	}
	a := f.start("a", "1.18", nil)
	b := f.start("b", "1.19", nil)
	consultest.Eventually(t, patient, func() error {
		if len(f.state().Candidates) != 2 {
			return errors.New("not all are there")
		}
		return nil
	})
	f.leads("r")
	r.stop()
	f.leads("a")
	r = f.start("r2", "1.17", race)
	f.leads("a")
	a.stop()
	b.stop()
	f.leads("r2")
	f.commit(consul.Delete(f.key("lease/holder")))
	consultest.Eventually(t, patient, func() error {
		if len(r.ended()) == 0 {
			return errors.New("r2 does not know")
		}
		return nil
	})
	f.leads("r2")
	f.neverTwo()
}

// If a duty returns by itself, Run returns the duty's error. The lock is free, and the session still exists.
func TestTheDutyEndsByItself(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	done := &onceError{"all is done"}
	a := f.run("a", "1.18", nil, func(context.Context) error { return done })
	if err := <-a.result; !errors.Is(err, done) {
		t.Errorf("Run returned %v", err)
	}
	s := f.state()
	if s.Lease.Held() || s.Lease.Holder.Last != "a" || len(s.Candidates) != 0 {
		t.Errorf("%+v", s)
	}
	f.start("b", "1.19", nil)
	f.leads("b")
}

func TestBadCandidates(t *testing.T) {
	t.Parallel()
	client, prefix := consultest.Client(t)
	good := election.Candidate{Client: client, Session: new(consul.Session), Prefix: prefix, Lease: lease, ID: "a"}
	for _, tt := range []struct {
		change func(*election.Candidate)
		want   string
	}{
		{func(c *election.Candidate) { c.ID = "A/b" }, `id: "A/b" is not valid`},
		{func(c *election.Candidate) { c.Lease = "" }, `lease_name: missing`},
		{func(c *election.Candidate) { c.Prefix = "x" }, `prefix: "x" is not valid`},
		{func(c *election.Candidate) { c.Session = nil }, `session: missing`},
		{func(c *election.Candidate) { c.BinaryVersion = "v1.19.0" }, `binary_version: "v1.19.0" is not valid`},
		{
			func(c *election.Candidate) { c.BinaryVersion, c.EmulationVersion = "1.19.0", "1.20.0" },
			`emulation_version: "1.20.0" is not valid`,
		},
		{func(c *election.Candidate) { c.Strategy = "?" }, `strategy: "?" is not valid`},
	} {
		c := good
		tt.change(&c)
		err := election.Run(t.Context(), c, func(context.Context) error { return errors.New("it leads") })
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
	if _, err := election.Read(t.Context(), client, prefix, lease); !errors.Is(err, consul.ErrNotFound) {
		t.Errorf("something was written: %v", err)
	}
	if _, err := election.Read(t.Context(), client, prefix, "a/b"); err == nil ||
		!strings.HasPrefix(err.Error(), `lease: "a/b" is not valid`) {
		t.Error(err)
	}
	if _, err := election.Commit(t.Context(), nil); !errors.Is(err, election.ErrNoLeader) {
		t.Error(err)
	}
}

// A candidate does not replace a record of another lease under its own id.
func TestTheLeaseOfARecordNeverChanges(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.commit(consul.Set(f.key("candidates/a"),
		[]byte(`{"lease_name":"other","binary_version":"1.0.0","strategy":"Newest"}`)))
	a := f.start("a", "1.19", nil)
	if err := <-a.result; err == nil ||
		!strings.HasSuffix(err.Error(),
			`lease_name: "nightly" is not valid; allowed: "other": a candidate's lease never changes`) {
		t.Errorf("got %v", err)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	client, prefix := consultest.Client(t)
	if names, err := election.List(t.Context(), client, prefix); err != nil || len(names) != 0 {
		t.Error(names, err)
	}
	if _, err := client.Commit(t.Context(), []consul.Op{
		consul.Set(prefix+"elections/b/lease/round", nil), consul.Set(prefix+"elections/a/lease/round",
			nil), consul.Set(prefix+"other", nil),
	}); err != nil {
		t.Fatal(err)
	}
	if names, err := election.List(t.Context(), client, prefix); err != nil ||
		!slices.Equal(names, []string{"a", "b"}) {
		t.Error(names, err)
	}
}
