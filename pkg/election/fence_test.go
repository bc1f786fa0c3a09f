package election_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/election"
)

// logOp is one operation on the log that leaders write: the beginning of a tenure, a write in a tenure, or a read.
type logOp struct {
	op      string // begin, write, read
	tenure  uint64 // index of the lock when the tenure began
	value   string
	unknown bool // the write may have landed
}

type logState struct {
	tenure uint64
	value  string
}

// fencedLog is the model: a tenure begins after all earlier tenures. When it has begun, no write of an earlier tenure
// has an effect any more.
var fencedLog = porcupine.NondeterministicModel{
	Init: func() []any { return []any{logState{}} },
	Step: func(state, input, _ any) []any {
		s, op := state.(logState), input.(logOp)
		written := logState{s.tenure, op.value}
		switch {
		case op.op == "begin" && op.tenure > s.tenure:
			return []any{logState{op.tenure, s.value}}
		case op.op == "read" && op.value == s.value:
			return []any{s}
		case op.op == "write" && op.unknown && op.tenure == s.tenure:
			return []any{s, written}
		case op.op == "write" && op.unknown:
			return []any{s}
		case op.op == "write" && op.tenure == s.tenure:
			return []any{written}
		default:
			return nil
		}
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// history has the operations of all clients, with their times.
type history struct {
	mu    sync.Mutex
	start time.Time
	ops   []porcupine.Operation
}

func (h *history) now() int64 { return time.Since(h.start).Nanoseconds() }

func (h *history) add(client int, op logOp, call int64) {
	end := h.now()
	if op.unknown {
		end = math.MaxInt64 // it can land at any time
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Call: call, Return: end})
}

func (h *history) count(op string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.ops {
		if o.Input.(logOp).op == op {
			n++
		}
	}
	return n
}

// writer returns a duty that writes to the log as long as possible.
func (h *history) writer(client int, key string) func(context.Context) error {
	return func(ctx context.Context) error {
		tenure := election.FenceOf(ctx)
		h.add(client, logOp{op: "begin", tenure: tenure}, 0) // the tenure began some time before
		for i := 0; ; i++ {
			op := logOp{op: "write", tenure: tenure, value: fmt.Sprintf("%d of tenure %d", i, tenure)}
			call := h.now()
			// The leader does not check whether its leadership has ended.
			_, err := election.Commit(context.WithoutCancel(ctx), []consul.Op{consul.Set(key, []byte(op.value))})
			switch {
			case err == nil:
				h.add(client, op, call)
			case errors.Is(err, consul.ErrUnknown):
				op.unknown = true
				h.add(client, op, call)
			}
			if errors.Is(err, election.ErrLost) || ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
}

// A write of a leader never has an effect after another leader's tenure has begun. In the test, leaders are suspended
// in the middle of a write, lose their session meanwhile, and continue later; they yield; their lock is deleted; they
// are cut off while their writes arrive; they are killed and restarted.
func TestLeadersNeverInterleave(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	h := &history{start: time.Now()}
	key := f.prefix + "log"
	ids := []string{"a", "b", "c"}
	var members []*member
	begin := func(i int) *member { return f.run(ids[i], fmt.Sprintf("1.%d", 17+i), nil, h.writer(i, key)) }
	for i := range ids {
		members = append(members, begin(i))
	}
	reading, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	readers.Go(func() {
		for reading.Err() == nil {
			call := h.now()
			pair, err := f.client.Get(reading, key, consul.Consistent)
			if err == nil || errors.Is(err, consul.ErrNotFound) {
				h.add(len(ids), logOp{op: "read", value: string(pair.Value)}, call)
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-reading.Done():
			}
		}
	})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round, n := range rand.New(rand.NewPCG(seed, 0)).Perm(15) {
		f.trouble(n%5, members, h, round, begin)
	}
	for _, m := range f.dead {
		m.revive()
		m.stop()
	}
	stop()
	readers.Wait()
	for _, m := range members {
		m.stop()
	}
	if h.count("write") < 20 || h.count("begin") < 10 {
		t.Errorf("only %d writes in %d tenures", h.count("write"), h.count("begin"))
	}
	switch porcupine.CheckOperationsTimeout(fencedLog.ToModel(), h.ops, patient) {
	case porcupine.Ok:
	case porcupine.Illegal:
		t.Errorf("%d operations have no order in which only leaders write", len(h.ops))
	case porcupine.Unknown:
		t.Errorf("%d operations are too many to judge", len(h.ops))
	}
}

// trouble makes the present leader lose the lease in one of five ways. Except for a yield, it then waits until another
// tenure has begun.
func (f *fleet) trouble(kind int, members []*member, h *history, round int, begin func(i int) *member) {
	f.t.Helper()
	leader := ""
	consultest.Eventually(f.t, patient, func() error {
		s, err := f.read()
		if err == nil {
			leader, _ = s.Leader()
		}
		if leader == "" {
			return fmt.Errorf("nobody leads in round %d: %w", round, err)
		}
		return nil
	})
	i := int(leader[0] - 'a')
	begun := h.count("begin")
	switch kind {
	case 0: // the leader is suspended in the middle of a write, which arrives later
		if !members[i].gate.shut() {
			f.trouble(kind, members, h, round, begin) // try again with the present leader
			return
		}
		f.destroySessions(members[i])
		f.begins(h, begun)
		members[i].gate.reopen()
	case 1:
		f.commit(consul.Delete(f.key("lease/holder")))
	case 2: // the leader is cut off: its requests arrive, but it gets no answers
		members[i].proxy.Set(consultest.Always(consultest.CutAfter))
		f.destroySessions(members[i])
		f.begins(h, begun)
		members[i].proxy.Set(consultest.Always(consultest.Forward))
	// The leader is killed, and another process takes its id. The killed process does not know this, and writes again
	// when it is connected again.
	case 3:
		dead := members[i]
		dead.kill()
		f.begins(h, begun)
		members[i] = begin(i)
		f.t.Cleanup(dead.revive)
		f.dead = append(f.dead, dead)
	default:
		s := f.state()
		ops, _, err := s.Yield("test")
		if err != nil {
			return // a leader is being replaced already
		}
		_, _ = f.client.Commit(f.t.Context(), ops) // it may be refused because of another round
		return
	}
	f.begins(h, begun)
}

func (f *fleet) begins(h *history, than int) {
	f.t.Helper()
	consultest.Eventually(f.t, patient, func() error {
		if h.count("begin") <= than {
			return errors.New("no new tenure")
		}
		return nil
	})
}
