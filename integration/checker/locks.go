package checker

import (
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// LockOp is a client's operation on a fenced register: a lock, and a value written under it. No write under an earlier
// fence may take effect after the lock is taken.
type LockOp struct {
	Client  int    `json:"client"`
	Key     string `json:"key"`
	Op      string `json:"op"`      // LockAcquire, LockWrite, LockRead
	Fence   uint64 `json:"fence"`   // the fence that the client got, or wrote under
	Value   string `json:"value"`   // the value that was written or read
	Outcome string `json:"outcome"` // LockDone, LockRefused, LockUnknown
	Call    int64  `json:"call"`    // unix nanoseconds
	Return  int64  `json:"return"`
}

// The operations on a register, and their outcomes.
const (
	LockAcquire = "acquire"
	LockWrite   = "write"
	LockRead    = "read"
	LockDone    = "done"
	LockRefused = "refused"
	LockUnknown = "unknown"
)

// linearizeLimit bounds the search for an order, which takes far less than a second.
const linearizeLimit = 30 * time.Second

type register struct {
	fence uint64
	value string
}

var fencedRegister = porcupine.NondeterministicModel{
	Init: func() []any { return []any{register{}} },
	Step: func(state, input, _ any) []any {
		r, op := state.(register), input.(LockOp)
		switch {
		case op.Op == LockAcquire && op.Fence > r.fence:
			return []any{register{fence: op.Fence, value: r.value}}
		case op.Op == LockAcquire:
			return nil
		case op.Op == LockRead && r.value == op.Value:
			return []any{r}
		case op.Op == LockRead:
			return nil
		case op.Outcome == LockRefused:
			return []any{r}
		case op.Outcome == LockUnknown && op.Fence != r.fence:
			return []any{r}
		case op.Outcome == LockUnknown:
			return []any{r, register{fence: r.fence, value: op.Value}}
		case op.Fence == r.fence:
			return []any{register{fence: r.fence, value: op.Value}}
		default:
			return nil
		}
	},
	DescribeOperation: func(input, _ any) string {
		op := input.(LockOp)
		return op.Op + " " + op.Value + " " + op.Outcome
	},
}

// locks judges the fenced registers: is there an order of the operations in which no write of an earlier tenure took
// effect?
func (j *judgement) locks(events []Event) {
	began := map[string]int64{} // the first use of each register
	for _, e := range ofKind(events, EventLock) {
		if at, known := began[e.Lock.Key]; !known || e.Lock.Call < at {
			began[e.Lock.Key] = e.Lock.Call
		}
	}
	byKey := map[string][]porcupine.Operation{}
	for _, e := range ofKind(events, EventLock) {
		if op, keep := cut(*e.Lock, j.rewoundAfter(began[e.Lock.Key])); keep {
			j.looked("P1 register")
			byKey[op.Key] = append(byKey[op.Key],
				porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: op.Return})
		}
	}
	model := fencedRegister.ToModel()
	for key, history := range byKey {
		switch porcupine.CheckOperationsTimeout(model, history, linearizeLimit) {
		case porcupine.Ok:
		case porcupine.Illegal:
			j.violated("P1", ruleRegister, 0,
				"%s: %d operations; a write of an earlier tenure took effect, or one of the present did not", key,
				len(history))
		case porcupine.Unknown:
			j.result.Checked["P1 register undecided"] += len(history)
		}
	}
}

// rewoundAfter returns when the first restore after a register's first use may have begun. It uses the log, because a
// client that timed out does not know whether its restore happens later.
func (j *judgement) rewoundAfter(began int64) int64 {
	for _, r := range j.rewound {
		if r.to > began {
			return r.from
		}
	}
	return math.MaxInt64
}

// cut fits an operation into a history that a restore ended: an operation that began later is left out, and an
// operation that was under way has an unknown outcome.
func cut(op LockOp, rewound int64) (LockOp, bool) {
	switch {
	case op.Call >= rewound || op.Return >= rewound && op.Op != LockWrite:
		return op, false
	case op.Return >= rewound:
		op.Outcome = LockUnknown
	}
	if op.Op == LockWrite && op.Outcome == LockUnknown {
		op.Return = math.MaxInt64 // it may land at any time
	}
	return op, true
}
