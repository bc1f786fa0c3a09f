package ballot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Pings has what Elect needs of the lease and the open round.
type Pings struct {
	Lease   string
	Held    bool   // the lock is held
	Holder  string // id of the holder, from the lock's value; it may not be a candidate
	Round   string // nonce of the open round; empty: none
	Over    bool   // the time for answers is over
	Pin     string // see Round
	Without []Ref  // see Round
}

// Action is what a candidate must do after a verdict.
type Action string

// The actions.
const (
	Leave  Action = "leave"  // change nothing: no candidate can be chosen, or another program assigns the lease
	Keep   Action = "keep"   // the holder keeps the lease
	Ask    Action = "ask"    // a round must be opened
	Wait   Action = "wait"   // wait for answers
	Choose Action = "choose" // Chosen must take the lease
)

// ConditionType is a state that needs attention.
type ConditionType string

// The conditions.
const (
	StrategyConflict ConditionType = "StrategyConflict" // candidates of the highest version name different strategies
	UnknownStrategy  ConditionType = "UnknownStrategy"  // another program assigns the lease
	AllSilent        ConditionType = "AllSilent"        // no candidate answered
	PinAbsent        ConditionType = "PinAbsent"        // the pinned candidate cannot be chosen, or has not answered
	OutOfElection    ConditionType = "Excluded"         // a living candidate cannot be chosen
)

// ConditionTypes are all types.
var ConditionTypes = []ConditionType{StrategyConflict, UnknownStrategy, AllSilent, PinAbsent, OutOfElection}

// Condition is a state that needs attention and is true now.
type Condition struct {
	Type    ConditionType `json:"type"`
	Message string        `json:"message"`
}

// Exclusion is a candidate that cannot be chosen.
type Exclusion struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
	Dead   bool   `json:"dead,omitempty"` // the record's writer does not live
}

// Verdict is the result of Elect.
type Verdict struct {
	Action     Action
	Chosen     string   // for Choose and Keep
	Above      []string // for Ask: the candidates that are better than the holder, best first
	Silent     []string // candidates that have not answered the open round
	Strategy   Strategy // the strategy that applies; empty: none
	Excluded   []Exclusion
	Conditions []Condition
}

func (v *Verdict) condition(t ConditionType, format string, args ...any) {
	v.Conditions = append(v.Conditions, Condition{t, fmt.Sprintf(format, args...)})
}

// Elect decides who leads. The order of the candidates does not matter.
//
//  1. Candidates that are dead, invalid, or of another lease are excluded. If none is left, nothing changes.
//  2. If no living candidate has the holder's id, the holder is another program, and keeps the lease.
//  3. The candidates with the highest binary version name the strategy. If they disagree, or if this program does not
//     know it, the holder keeps the lease, and a free lease stays free, unless a candidate is pinned.
//  4. If the best candidate according to the records is the holder, it keeps the lease without a round.
//  5. Otherwise a round asks the living candidates. The best gets the lease as soon as it answers or, when the time for
//     answers is over, the best that answered. A holder that has not answered loses only to a better candidate.
func Elect(candidates []Candidate, p Pings) Verdict {
	v := Verdict{Action: Leave}
	in := v.admit(candidates, p)
	foreign := p.Held &&
		!slices.ContainsFunc(candidates, func(c Candidate) bool { return c.ID == p.Holder && c.Session != "" })
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

type election struct {
	Pings
	pinned bool                      // a candidate is pinned and can be chosen
	order  func(a, b *Candidate) int // best first; nil: only the pinned candidate can be chosen
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
	var voters []*Candidate // the candidates that answered, and the holder
	answered := false       // any candidate has answered
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
	case best.Record.Round == e.Round: // the best candidate has answered, so other answers change nothing
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

// best puts the pinned candidate first, and candidates in Without last. Without an order, it returns the pinned
// candidate or nil.
func (e *election) best(of []*Candidate) *Candidate {
	if i := slices.IndexFunc(of, func(c *Candidate) bool { return e.pinned && c.ID == e.Pin }); i >= 0 {
		return of[i]
	}
	if e.order == nil {
		return nil
	}
	free := slices.DeleteFunc(slices.Clone(of),
		func(c *Candidate) bool { return slices.ContainsFunc(e.Without, func(r Ref) bool { return r.is(*c) }) })
	if len(free) > 0 {
		of = free
	}
	return slices.MinFunc(of, e.order)
}

// If there is no holder, above returns all candidates.
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

// admit returns the candidates that can be chosen, sorted by id.
func (v *Verdict) admit(candidates []Candidate, p Pings) []*Candidate {
	var in []*Candidate
	for i := range candidates {
		c := &candidates[i]
		switch err := c.Record.Validate(); {
		case c.Session == "":
			v.Excluded = append(v.Excluded,
				Exclusion{ID: c.ID, Reason: "nobody lives who wrote the record", Dead: true})
		case c.Err != nil:
			v.exclude(c, c.Err)
		case err != nil:
			v.exclude(c, err)
		case c.Record.LeaseName != p.Lease:
			v.exclude(c, fmt.Errorf("lease_name: %q is not valid; allowed: %q, under which the record is",
				c.Record.LeaseName, p.Lease))
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

// strategy returns the order of candidates, or nil if no strategy applies.
func (v *Verdict) strategy(in []*Candidate, p Pings) func(a, b *Candidate) int {
	highest := slices.MaxFunc(in,
		func(a, b *Candidate) int { return compareVersions(a.Record.BinaryVersion, b.Record.BinaryVersion) })
	var named []string
	for _, c := range in {
		if s := string(c.Record.Strategy); compareVersions(c.Record.BinaryVersion, highest.Record.BinaryVersion) == 0 &&
			!slices.Contains(named, s) {
			named = append(named, s)
		}
	}
	if slices.Sort(named); len(named) > 1 {
		v.condition(StrategyConflict, "candidates of the highest version, %s, name different strategies: %s",
			highest.Record.BinaryVersion, strings.Join(named, ", "))
		return nil
	}
	v.Strategy = highest.Record.Strategy
	switch v.Strategy {
	case OldestEmulationVersion:
		return func(a, b *Candidate) int {
			return cmp.Or(compareVersions(a.emulates(), b.emulates()),
				compareVersions(a.Record.BinaryVersion, b.Record.BinaryVersion), older(a, b))
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
		v.condition(UnknownStrategy, "the strategy %s of the highest version, %s, is another program's", v.Strategy,
			highest.Record.BinaryVersion)
		return nil
	}
}

func (c *Candidate) emulates() string {
	return cmp.Or(c.Record.EmulationVersion, c.Record.BinaryVersion)
}

func (p *Pings) rank(c *Candidate) int {
	if p.Held && c.ID == p.Holder {
		return 0
	}
	return 1
}

func older(a, b *Candidate) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.ID, b.ID))
}
