// Package checker judges what a cluster did, from Consul's own history. It shares only the key schema with the farm. It
// reads the servers' Raft logs, replays them with its own implementation of Consul's commands, and checks P1 to P6
// after each transaction. Blocking queries would not be enough, because they miss versions between two answers.
//
// The run writes events for facts that the log lacks, such as what a simulated node ran. Start reading at Check.
//
// A rule allows acts that were right before a change that the farm may not have read yet. Each such tolerance has a
// bound, a constant such as heardLate, saidLate, selfStopLate or onItsWay, with its reason. After the bound, the same
// act is a violation. Tests have histories that just keep each bound, and that just exceed it.
package checker

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"
)

// Files that Check reads, below a run's directory.
const (
	EventsFile = "events.jsonl"
	FinalFile  = "final.json" // all keys as Consul showed them at the end: see Final
)

// LogFile returns the path of one server's Raft log.
func LogFile(dir, server string) string { return filepath.Join(dir, server, "raft", "raft.db") }

// Violation is one broken promise.
type Violation struct {
	Promise  string `json:"promise"` // such as "P1"
	Rule     string `json:"rule"`    // which rule was broken
	Index    uint64 `json:"index"`   // Raft index; zero: the violation belongs to no single index
	Evidence string `json:"evidence"`
}

func (v Violation) String() string {
	return fmt.Sprintf("%s %s at index %d: %s", v.Promise, v.Rule, v.Index, v.Evidence)
}

// Result is the judgement of one run.
type Result struct {
	Entries      int `json:"entries"`      // of the Raft log
	Transactions int `json:"transactions"` // transactions that changed records of rcfarm
	Restores     int `json:"restores"`
	// the longest time that a restored store kept its epoch, in nanoseconds
	RenewedAfter time.Duration `json:"renewed_after,omitempty"`
	Wipes        int           `json:"wipes"` // of the whole prefix
	// the longest time after a wipe until a pod was adopted, in nanoseconds
	AdoptedAfter time.Duration  `json:"adopted_after,omitempty"`
	Leaders      int            `json:"leaders"`    // leaders of the farms that wrote something since the last restore
	Trips        int            `json:"trips"`      // of the mass-stop breaker
	Relabelled   int            `json:"relabelled"` // how often operators gave a node other labels
	Checked      map[string]int `json:"checked"`    // how often each rule had something to judge
	Violations   []Violation    `json:"violations"`
}

// Count returns the number of violations by promise and rule.
func (r *Result) Count() map[string]int {
	counts := map[string]int{}
	for _, v := range r.Violations {
		counts[v.Promise+" "+v.Rule]++
	}
	return counts
}

// ErrHarness means that the run cannot be judged: its history has gaps, or the replay differs from Consul at the end.
var ErrHarness = errors.New("the run cannot be judged")

// Check judges the run whose files are below dir, and calls trace, if not nil, with every command.
func Check(dir string, servers []string, trace func(*Write)) (*Result, error) {
	log, err := readLogs(dir, servers)
	if err != nil {
		return nil, err
	}
	events, err := ReadEvents(filepath.Join(dir, EventsFile))
	if err != nil {
		return nil, err
	}
	final, err := readFinal(filepath.Join(dir, FinalFile))
	if err != nil {
		return nil, err
	}
	return judge(log, events, final, trace)
}

func judge(log []Entry, events []Event, final Final, trace func(*Write)) (*Result, error) {
	log = slices.DeleteFunc(log, func(e Entry) bool { return e.Index > final.Index })
	j := newJudgement(events, trace)
	j.result.Entries = len(log)
	if err := j.replay(log, events); err != nil {
		return nil, err
	}
	if err := j.state.equals(final.Keys); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHarness, err)
	}
	j.endWipe()
	j.nodeStops(events)
	j.once(events)
	j.finally()
	j.locks(events)
	slices.SortStableFunc(j.result.Violations, func(a, b Violation) int { return int(int64(a.Index) - int64(b.Index)) })
	return j.result, nil
}

type judgement struct {
	state   *state
	nodes   *nodes
	result  *Result
	trace   func(*Write)
	ordered map[string]asked // every intent ever written, by node, identity and revision
	leaked  map[string]bool  // claims that the run itself leaked, by node and identity

	listed map[listedPage]string // epochs of all pages of orphans that were ever written

	swept  map[string]bool    // controllers with an orphan that operators once asked to stop
	drains map[string]drained // by node: its last drain that was ended
	away   away
	hits   []Event // what the run did to machines

	tenures   tenures
	outsiders map[string]outsider // by unit: the farm that took its lock by mistake
	// by unit: the last writing session since a lock changed hands
	writers map[string]string
	farms   map[string]bool // every id that a farm has had

	mistakes []Event // wipes: an operator deleted everything
	wiped    *wiped  // the last wipe; nil: none yet

	labelled map[string][]unlabelled // labels that nodes had before

	manifests map[string]*manifestRecord // every manifest that was ever written, by its digest
	// by controller and role: since when it is ordered, unix nanoseconds; kept when the role is gone
	alone map[string]int64

	// by reality's key: the pod was available on this node since it was placed there
	served map[string]bool

	stopped map[string]*stopsBy // by the session of the farm that asked for it

	restoredAt uint64    // index of the last restore
	rewound    []span    // when each restore happened, by the log
	takenBack  []written // the range of indices that each restore took back
	undone     *state    // the state that the last restore took back
	epochAt    uint64    // index since which the cluster has its epoch
	// checks of preparers that have passed since the epoch was made, and whose nodes have not echoed it
	silent map[checkName]string
}

// span is in unix nanoseconds.
type span struct{ from, to int64 }

// written excludes both indices.
type written struct{ after, before uint64 }

type asked struct {
	state string
	at    int64 // unix nanoseconds, by the clock of the leader that appended it
	index uint64
}

func newJudgement(events []Event, trace func(*Write)) *judgement {
	return &judgement{
		state: newState(), result: &Result{Checked: map[string]int{}}, nodes: newNodes(), trace: trace,
		ordered: map[string]asked{}, leaked: leaks(events), listed: map[listedPage]string{}, swept: map[string]bool{},
		drains: map[string]drained{}, farms: map[string]bool{},
		away: newAway(), hits: ofKind(events, EventMachine),
		mistakes: ofKind(events, EventWipe), stopped: map[string]*stopsBy{},
		writers: map[string]string{}, outsiders: map[string]outsider{}, labelled: map[string][]unlabelled{},
		manifests: map[string]*manifestRecord{}, alone: map[string]int64{}, served: map[string]bool{},
	}
}

func (j *judgement) violated(promise, rule string, index uint64, format string, args ...any) {
	j.result.Violations = append(j.result.Violations, Violation{
		Promise: promise, Rule: rule, Index: index, Evidence: fmt.Sprintf(format, args...),
	})
}

func (j *judgement) looked(rule string) { j.result.Checked[rule]++ }

func (j *judgement) replay(log []Entry, events []Event) error {
	restores := newRestores(events)
	pending := ofKind(events, EventNode, EventLost, EventSelf)
	for i := range log {
		e := &log[i]
		if i > 0 && e.Index != log[i-1].Index+1 {
			if err := j.restore(restores, &log[i-1], e); err != nil {
				return err
			}
		}
		for len(pending) > 0 && pending[0].At < e.At {
			j.nodes.apply(j, pending[0])
			pending = pending[1:]
		}
		w, err := j.state.apply(e)
		if err != nil {
			return err
		}
		if j.trace != nil {
			j.trace(w)
		}
		j.outlived(w)
		j.away.see(j.state, e.At)
		if len(w.Changes) > 0 {
			j.rules(w)
		}
		j.afterWipe(w)
		j.speak()
		restores.keep(e.Index, j.state)
	}
	for _, ev := range pending {
		j.nodes.apply(j, ev)
	}
	return nil
}

// restore sets the replay back to the snapshot that an operator restored. Raft leaves a gap of one index for it.
func (j *judgement) restore(r *restores, last, next *Entry) error {
	index, saved, err := r.match(last, next)
	if err != nil {
		return err
	}
	j.undone, j.state = j.state, saved.clone()
	j.tenures = nil // the former leader may lead again
	clear(j.writers)
	clear(j.outsiders)
	j.drainsTakenBack(next.At)
	j.restoredAt = last.Index + 1
	j.rewound = append(j.rewound, span{last.At, next.At})
	j.takenBack = append(j.takenBack, written{index, j.restoredAt})
	j.result.Restores++
	return nil
}

func (j *judgement) rules(w *Write) {
	w.Changes = slices.DeleteFunc(w.Changes, Change.byRun)
	j.remember(w)
	if j.wipes(w) {
		return
	}
	j.echoes(w)
	j.rollouts(w)
	j.oneWriter(w)
	j.leads(w)
	j.chosen(w)
	if !w.touches() {
		return
	}
	j.result.Transactions++
	j.single(w)
	j.locked(w)
	j.fresh(w)
	j.committed(w)
	j.stops(w)
	j.massStop(w)
	j.lostRightly(w)
	j.confirmed(w)
	j.toldAlone(w)
	j.minimum(w)
	j.eachNode(w)
	j.disabled(w)
	j.static(w)
	j.synced(w)
}

func (j *judgement) remember(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		if in := c.After.intent(); in != nil {
			key := orderKey(nodeOfIntent(c.Key), in.id(), in.Revision)
			// another intent with this revision and state repeats the first, perhaps with another manifest
			if was, said := j.ordered[key]; !said || was.state != in.State {
				j.ordered[key] = asked{state: in.State, at: w.At, index: w.Index}
			}
		}
		if c.Key == keySchema && c.After != nil &&
			(c.Before == nil || c.Before.schema().Epoch != c.After.schema().Epoch) {
			if j.restoredAt > j.epochAt {
				j.result.RenewedAfter = max(j.result.RenewedAfter, time.Duration(w.At-j.rewound[len(j.rewound)-1].to))
			}
			j.epochAt = w.Index
			j.silent = j.state.passingPreparers()
		}
		if c.Key == keyBreaker && c.After.tripped() && !c.Before.tripped() {
			j.result.Trips++
		}
		// the operator who reset the breaker has seen these stops
		if c.Key == keyBreaker && c.Before.tripped() && !c.After.tripped() {
			for _, by := range j.stopped {
				clear(by.at)
			}
		}
		if r := c.After.request(); r != nil && r.Kind == sweepOrphan {
			j.swept[r.RCID] = true
		}
		j.rememberDrain(c, w.At)
		j.rememberOwner(c, w.At)
		j.forgetWriter(c)
		j.rememberLabels(c, w.At)
		j.rememberOrdered(c, w.At)
		j.rememberServed(c)
	}
}

func orderKey(node, id string, revision int64) string {
	return fmt.Sprintf("%s|%s|%d", node, id, revision)
}

// Breached reports whether a session without the lock changed what the lock protects.
func (r *Result) Breached() bool {
	for _, v := range r.Violations {
		switch v.Rule {
		case ruleOwner, ruleRegister, ruleNotLocked, ruleTwoSessions, ruleTwoWriters,
			ruleRolloutNotLocked, ruleStepOwner,
			ruleNoLeader, ruleOtherLeader, ruleLeadersMixed:
			return true
		}
	}
	return false
}

// Overdrawn reports whether a write broke the minimum of a service, or its bound.
func (r *Result) Overdrawn() bool {
	for _, v := range r.Violations {
		switch v.Rule {
		case ruleServiceMinimum, ruleServiceBound:
			return true
		}
	}
	return false
}

// Only these rules prove that the fence failed. Others find that a write lacks the fence.
const (
	ruleOwner       = "written by another than the holder"
	ruleNotLocked   = "lock not held by a farm"
	ruleTwoSessions = "written under two sessions"
	ruleTwoWriters  = "unit written under two sessions"
	ruleRegister    = "fenced register not linearizable"

	ruleNoLeader     = "written while no farm led"
	ruleOtherLeader  = "written under another's lease"
	ruleLeadersMixed = "writes of two leaders mixed"
)
