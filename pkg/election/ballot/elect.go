package ballot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Pings are what Elect needs to know besides the candidates: the lease, and the round that is open.
type Pings struct {
	Lease   string
	Held    bool   // somebody holds the lock
	Holder  string // who, by the lock's value; it may be no candidate
	Round   string // nonce of the round that is open; empty: none is
	Over    bool   // no more answers are waited for
	Pin     string // see Round
	Without []Ref  // see Round
}

// Action is what follows from a verdict.
type Action string

// The actions.
const (
	Leave  Action = "leave"  // nothing is changed: nobody can be chosen, or the lease is not ours to give
	Keep   Action = "keep"   // the holder stays
	Ask    Action = "ask"    // a round must be opened
	Wait   Action = "wait"   // for answers
	Choose Action = "choose" // Chosen is to hold the lease
)

// ConditionType names something about an election that somebody should look at.
type ConditionType string

// The conditions.
const (
	StrategyConflict ConditionType = "StrategyConflict" // equal highest versions name different strategies
	UnknownStrategy  ConditionType = "UnknownStrategy"  // some other program assigns the lease
	AllSilent        ConditionType = "AllSilent"        // nobody answered
	PinAbsent        ConditionType = "PinAbsent"        // the pinned one cannot be chosen, or has not answered
	OutOfElection    ConditionType = "Excluded"         // candidates live that cannot be chosen
)

// ConditionTypes are all of them.
var ConditionTypes = []ConditionType{StrategyConflict, UnknownStrategy, AllSilent, PinAbsent, OutOfElection}

// Condition is one that holds, in words.
type Condition struct {
	Type    ConditionType `json:"type"`
	Message string        `json:"message"`
}

// Exclusion says why a candidate cannot be chosen.
type Exclusion struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
	Dead   bool   `json:"dead,omitempty"` // nobody lives who wrote the record
}

// Verdict is what Elect found.
type Verdict struct {
	Action     Action
	Chosen     string   // of Choose and Keep
	Above      []string // of Ask: who goes before the holder, and so has reason to ask; best first
	Silent     []string // who has not answered the open round
	Strategy   Strategy // that counts; empty: none does
	Excluded   []Exclusion
	Conditions []Condition
}

func (v *Verdict) condition(t ConditionType, format string, args ...any) {
	v.Conditions = append(v.Conditions, Condition{t, fmt.Sprintf(format, args...)})
}

// Elect says who is to lead. It depends on what it is given only, and not on the order of the candidates.
//
//  1. Candidates that are dead, invalid, or of another lease are out. Without any a lease that is held stays as it is, and a free one free.
//  2. A holder without a living record is some other program's; it stays.
//  3. The strategy is that of the highest binary version. Where that is none, because candidates of that version disagree or nobody here
//     knows it, the holder stays, and a free lease free; only a pin decides then.
//  4. If the best by the records holds the lease, it stays, and nobody needs to be asked.
//  5. Else those are asked who live. The best of all has the lease as soon as it answers; when no more answers are waited for, the best of
//     those that answered has it. A holder that has not answered gives way to a better one only.
func Elect(candidates []Candidate, p Pings) Verdict {
	v := Verdict{Action: Leave}
	in := v.admit(candidates, p)
	foreign := p.Held && !slices.ContainsFunc(candidates, func(c Candidate) bool { return c.ID == p.Holder && c.Session != "" })
	if len(in) == 0 || foreign {
		return v
	}
	e := election{Pings: p, pinned: slices.ContainsFunc(in, func(c *Candidate) bool { return c.ID == p.Pin })}
	if p.Pin != "" && !e.pinned {
		v.condition(PinAbsent, "%s is pinned, and is no candidate that can be chosen", p.Pin)
	}
	e.order = v.strategy(in, p)
	if e.order == nil && !e.pinned {
		return v
	}
	v.decide(&e, in)
	return v
}

// election is what the choice among some candidates depends on.
type election struct {
	Pings
	pinned bool                      // somebody is, and can be chosen
	order  func(a, b *Candidate) int // best first; nil: only the pinned one can be chosen
}

func (v *Verdict) decide(e *election, in []*Candidate) {
	best := e.best(in)
	if e.Held && best.ID == e.Holder {
		v.Action, v.Chosen = Keep, best.ID
		return
	}
	if e.Round == "" {
		v.Action, v.Above = Ask, e.above(in)
		return
	}
	var voters []*Candidate // those that answered, and the holder
	answered := false       // somebody has
	for _, c := range in {
		switch {
		case c.Record.Round == e.Round:
			answered = true
			voters = append(voters, c)
		case e.Held && c.ID == e.Holder:
			voters = append(voters, c)
			fallthrough
		default:
			v.Silent = append(v.Silent, c.ID)
		}
	}
	switch {
	case best.Record.Round == e.Round: // whoever else answers changes nothing
		v.Action, v.Chosen = Choose, best.ID
		return
	case !e.Over:
		v.Action = Wait
		return
	case !answered:
		v.condition(AllSilent, "none of %d candidates has answered", len(in))
		return
	case e.pinned:
		v.condition(PinAbsent, "%s is pinned, and has not answered", e.Pin)
	}
	switch best = e.best(voters); {
	case best == nil:
	case e.Held && best.ID == e.Holder:
		v.Action, v.Chosen = Keep, best.ID
	default:
		v.Action, v.Chosen = Choose, best.ID
	}
}

// best returns who goes before the others. It is nil where there is no order, and the pinned one is not among them.
func (e *election) best(of []*Candidate) *Candidate {
	if i := slices.IndexFunc(of, func(c *Candidate) bool { return e.pinned && c.ID == e.Pin }); i >= 0 {
		return of[i]
	}
	if e.order == nil {
		return nil
	}
	free := slices.DeleteFunc(slices.Clone(of), func(c *Candidate) bool { return slices.ContainsFunc(e.Without, func(r Ref) bool { return r.is(*c) }) })
	if len(free) > 0 {
		of = free
	}
	return slices.MinFunc(of, e.order)
}

// above returns who goes before the holder; without one everybody does.
func (e *election) above(in []*Candidate) []string {
	left := slices.Clone(in)
	var ids []string
	for len(left) > 0 {
		best := e.best(left)
		if best == nil || e.Held && best.ID == e.Holder {
			break
		}
		ids = append(ids, best.ID)
		left = slices.DeleteFunc(left, func(c *Candidate) bool { return c == best })
	}
	return ids
}

// admit returns those that can be chosen, in the order of their ids, and says why the others cannot.
func (v *Verdict) admit(candidates []Candidate, p Pings) []*Candidate {
	var in []*Candidate
	for i := range candidates {
		c := &candidates[i]
		switch err := c.Record.Validate(); {
		case c.Session == "":
			v.Excluded = append(v.Excluded, Exclusion{ID: c.ID, Reason: "nobody lives who wrote the record", Dead: true})
		case c.Err != nil:
			v.exclude(c, c.Err)
		case err != nil:
			v.exclude(c, err)
		case c.Record.LeaseName != p.Lease:
			v.exclude(c, fmt.Errorf("lease_name: %q is not valid; allowed: %q, under which the record is", c.Record.LeaseName, p.Lease))
		default:
			in = append(in, c)
		}
	}
	slices.SortFunc(in, func(a, b *Candidate) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(v.Excluded, func(a, b Exclusion) int { return cmp.Compare(a.ID, b.ID) })
	for _, e := range v.Excluded {
		if !e.Dead {
			v.condition(OutOfElection, "%s cannot be chosen: %s", e.ID, e.Reason)
		}
	}
	return in
}

func (v *Verdict) exclude(c *Candidate, why error) {
	v.Excluded = append(v.Excluded, Exclusion{ID: c.ID, Reason: strings.ReplaceAll(why.Error(), "\n", "; ")})
}

// strategy finds the strategy that counts, and returns the order that follows from it, nil where none does.
func (v *Verdict) strategy(in []*Candidate, p Pings) func(a, b *Candidate) int {
	highest := slices.MaxFunc(in, func(a, b *Candidate) int { return compareVersions(a.Record.BinaryVersion, b.Record.BinaryVersion) })
	var named []string
	for _, c := range in {
		if s := string(c.Record.Strategy); compareVersions(c.Record.BinaryVersion, highest.Record.BinaryVersion) == 0 && !slices.Contains(named, s) {
			named = append(named, s)
		}
	}
	if slices.Sort(named); len(named) > 1 {
		v.condition(StrategyConflict, "candidates of the highest version, %s, name different strategies: %s", highest.Record.BinaryVersion, strings.Join(named, ", "))
		return nil
	}
	v.Strategy = highest.Record.Strategy
	switch v.Strategy {
	case OldestEmulationVersion:
		return func(a, b *Candidate) int {
			return cmp.Or(compareVersions(a.emulates(), b.emulates()), compareVersions(a.Record.BinaryVersion, b.Record.BinaryVersion), older(a, b))
		}
	case Newest:
		return func(a, b *Candidate) int {
			return cmp.Or(compareVersions(b.Record.BinaryVersion, a.Record.BinaryVersion), older(a, b))
		}
	case Pinned:
		return func(a, b *Candidate) int {
			return cmp.Or(p.rank(a)-p.rank(b), older(a, b))
		}
	default:
		v.condition(UnknownStrategy, "the strategy %s of the highest version, %s, is another program's", v.Strategy, highest.Record.BinaryVersion)
		return nil
	}
}

// emulates returns the version that a candidate behaves like: its own, unless it says otherwise.
func (c *Candidate) emulates() string {
	return cmp.Or(c.Record.EmulationVersion, c.Record.BinaryVersion)
}

// rank is 0 of the holder.
func (p *Pings) rank(c *Candidate) int {
	if p.Held && c.ID == p.Holder {
		return 0
	}
	return 1
}

func older(a, b *Candidate) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.ID, b.ID))
}
