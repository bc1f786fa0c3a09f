package ballot_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
)

const (
	lease = "janitor"
	round = "round-2"
)

// of returns a living candidate that wrote its record as the n-th, and has not answered any round. A version such as
// 1.19/1.18 has the binary version and the emulation version.
func of(id, version string, n uint64) ballot.Candidate {
	binary, emulated, found := strings.Cut(version, "/")
	if !found {
		emulated = binary
	}
	return ballot.Candidate{
		ID: id, Created: n, Session: "session of " + id,
		Record: ballot.Record{
			LeaseName: lease, BinaryVersion: binary + ".0", EmulationVersion: emulated + ".0",
			Strategy: ballot.OldestEmulationVersion,
		},
	}
}

// answers returns the same candidate with an answer to the open round.
func answers(c ballot.Candidate) ballot.Candidate {
	c.Record.Round = round
	return c
}

func with(c ballot.Candidate, change func(*ballot.Candidate)) ballot.Candidate {
	change(&c)
	return c
}

func strategy(s ballot.Strategy) func(*ballot.Candidate) {
	return func(c *ballot.Candidate) { c.Record.Strategy = s }
}

func dead(c *ballot.Candidate) { c.Session = "" }

func free() ballot.Pings                { return ballot.Pings{Lease: lease} }
func heldBy(id string) ballot.Pings     { return ballot.Pings{Lease: lease, Held: true, Holder: id} }
func asked(p ballot.Pings) ballot.Pings { p.Round = round; return p }
func over(p ballot.Pings) ballot.Pings  { p.Round, p.Over = round, true; return p }

func pinned(p ballot.Pings, id string) ballot.Pings { p.Pin = id; return p }

func without(p ballot.Pings, refs ...ballot.Ref) ballot.Pings { p.Without = refs; return p }

// verdict is the expected result of a case: an action; the chosen candidate, or the candidates above the holder; and
// the conditions.
type verdict struct {
	action ballot.Action
	who    string
	conds  string
}

func got(v ballot.Verdict) verdict {
	w := verdict{action: v.Action, who: v.Chosen}
	if v.Action == ballot.Ask {
		w.who = strings.Join(v.Above, " ")
	}
	var conds []string
	for _, c := range v.Conditions {
		conds = append(conds, string(c.Type))
	}
	w.conds = strings.Join(conds, " ")
	return w
}

func TestElect(t *testing.T) {
	type list = []ballot.Candidate
	leave, keep, ask, wait, choose := ballot.Leave, ballot.Keep, ballot.Ask, ballot.Wait, ballot.Choose
	for _, tt := range []struct {
		name string
		c    list
		p    ballot.Pings
		want verdict
	}{
		{"no candidates, no lease", nil, free(), verdict{leave, "", ""}},
		{"no candidates, a lease", nil, heldBy("x"), verdict{leave, "", ""}},
		{"one, nobody was asked", list{of("a", "1.19", 1)}, free(), verdict{ask, "a", ""}},
		{"one, asked", list{of("a", "1.19", 1)}, asked(free()), verdict{wait, "", ""}},
		{"one leads", list{answers(of("a", "1.19", 1))}, asked(free()), verdict{choose, "a", ""}},
		{"one stays", list{of("a", "1.19", 1)}, heldBy("a"), verdict{keep, "a", ""}},
		{"one stays in a round", list{of("a", "1.19", 1)}, over(heldBy("a")), verdict{keep, "a", ""}},

		{"1.19 leads, 1.18 arrives", list{of("a", "1.19", 1), of("b", "1.18", 2)}, heldBy("a"), verdict{ask, "b", ""}},
		{"1.18 is asked", list{of("a", "1.19", 1), of("b", "1.18", 2)}, asked(heldBy("a")), verdict{wait, "", ""}},
		{
			"1.18 has answered",
			list{of("a", "1.19", 1), answers(of("b", "1.18", 2))},
			asked(heldBy("a")),
			verdict{choose, "b", ""},
		},
		{"1.18 leads, 1.19 arrives", list{of("a", "1.19", 1), of("b", "1.18", 2)}, heldBy("b"), verdict{keep, "b", ""}},

		{
			"the older has not answered yet",
			list{of("a", "1.18", 1), answers(of("b", "1.19", 2))},
			asked(free()),
			verdict{wait, "", ""},
		},
		{
			"the older never answers",
			list{of("a", "1.18", 1), answers(of("b", "1.19", 2))},
			over(free()),
			verdict{choose, "b", ""},
		},
		{
			"the older never answers the holder",
			list{of("a", "1.18", 1), answers(of("b", "1.19", 2))},
			over(heldBy("b")),
			verdict{keep, "b", ""},
		},
		{
			"a silent holder gives way to a better one",
			list{
				of("a", "1.18", 1), answers(of("b", "1.19", 2)),
				of("c", "1.20", 3),
			},
			over(heldBy("c")),
			verdict{choose, "b", ""},
		},
		{
			"a silent holder does not give way to a worse one",
			list{
				of("a", "1.18", 1), of("b", "1.19", 2),
				answers(of("c", "1.20", 3)),
			},
			over(heldBy("b")),
			verdict{keep, "b", ""},
		},
		{
			"all silent, free",
			list{of("a", "1.18", 1), of("b", "1.19", 2)},
			over(free()),
			verdict{leave, "", "AllSilent"},
		},
		{
			"all silent, held",
			list{of("a", "1.18", 1), of("b", "1.19", 2)},
			over(heldBy("b")),
			verdict{leave, "", "AllSilent"},
		},

		{
			"the same emulation: lower binary",
			list{answers(of("a", "1.20/1.18", 1)), answers(of("b", "1.19/1.18", 2))},
			asked(free()),
			verdict{choose, "b", ""},
		},
		{
			"lower emulation before lower binary",
			list{
				answers(of("a", "1.20/1.18", 1)),
				answers(of("b", "1.19/1.19", 2)),
			},
			asked(free()),
			verdict{choose, "a", ""},
		},
		{
			"all equal: the oldest",
			list{answers(of("a", "1.18", 2)), answers(of("b", "1.18", 1))},
			asked(free()),
			verdict{choose, "b", ""},
		},
		{
			"all equal, the age too: the id",
			list{answers(of("b", "1.18", 1)), answers(of("a", "1.18", 1))},
			asked(free()),
			verdict{choose, "a", ""},
		},
		{
			"1.2.0 is before 1.19.0",
			list{answers(of("a", "1.19", 1)), answers(of("b", "1.2", 2))},
			asked(free()),
			verdict{choose, "b", ""},
		},
		{
			"a prerelease is before its release",
			list{answers(of("a", "1.19", 1)), answers(with(of("b", "1.19", 2), func(c *ballot.Candidate) {
				c.Record.BinaryVersion, c.Record.EmulationVersion = "1.19.0-rc.1", "1.19.0-rc.1"
			}))},
			asked(free()),
			verdict{choose, "b", ""},
		},

		{
			"invalid ones are out",
			list{answers(of("a", "1.19", 1)), answers(of("b", "v1.2", 2))},
			asked(free()),
			verdict{choose, "a", "Excluded"},
		},
		{
			"an invalid holder gives way",
			list{answers(of("a", "1.19", 1)), of("b", "v1.2", 2)},
			heldBy("b"),
			verdict{ask, "a", "Excluded"},
		},
		{"a holder alone that is invalid", list{of("b", "v1.2", 2)}, heldBy("b"), verdict{leave, "", "Excluded"}},
		{
			"of another lease",
			list{
				answers(with(of("a", "1.18", 1), func(c *ballot.Candidate) { c.Record.LeaseName = "other" })),
				answers(of("b", "1.19", 2)),
			},
			asked(free()),
			verdict{choose, "b", "Excluded"},
		},
		{
			"unreadable",
			list{
				answers(with(of("a", "1.18", 1), func(c *ballot.Candidate) { c.Err = errors.New("no JSON") })),
				answers(of("b", "1.19", 2)),
			},
			asked(free()),
			verdict{choose, "b", "Excluded"},
		},
		{
			"the dead are out, without a word",
			list{answers(with(of("a", "1.18", 1), dead)), answers(of("b", "1.19", 2))},
			asked(free()),
			verdict{choose, "b", ""},
		},
		{"two of three dead", list{
			with(of("a", "1.18", 1), dead), with(of("b", "1.18", 2), dead),
			answers(of("c", "1.19", 3)),
		}, asked(free()), verdict{choose, "c", ""}},
		{"only dead ones", list{with(of("a", "1.18", 1), dead)}, over(free()), verdict{leave, "", ""}},
		{
			"a holder with a dead record is another program's",
			list{
				with(of("a", "1.19", 1), dead),
				answers(of("b", "1.18", 2)),
			},
			over(heldBy("a")),
			verdict{leave, "", ""},
		},
		{
			"a holder that is no candidate",
			list{answers(of("b", "1.18", 2))},
			over(heldBy("race")),
			verdict{leave, "", ""},
		},

		{
			"conflict, held",
			list{
				answers(of("a", "1.19", 1)),
				answers(with(of("b", "1.19", 2), strategy(ballot.Newest))),
			},
			over(heldBy("b")),
			verdict{
				leave, "",
				"StrategyConflict",
			},
		},
		{
			"conflict, free",
			list{
				answers(of("a", "1.19", 1)),
				answers(with(of("b", "1.19", 2), strategy(ballot.Newest))),
			},
			over(free()),
			verdict{
				leave, "",
				"StrategyConflict",
			},
		},
		{"no conflict with lower versions", list{
			answers(with(of("a", "1.18", 1), strategy(ballot.Newest))),
			answers(of("b", "1.19", 2)),
		}, over(free()), verdict{choose, "a", ""}},
		{
			"a third party's strategy, held",
			list{
				answers(of("a", "1.18", 1)),
				answers(with(of("b", "1.19", 2), strategy("example.com/Mine"))),
			},
			over(heldBy("b")),
			verdict{
				leave, "",
				"UnknownStrategy",
			},
		},
		{
			"a third party's strategy, free",
			list{answers(with(of("b", "1.19", 2), strategy("example.com/Mine")))},
			over(free()),
			verdict{leave, "", "UnknownStrategy"},
		},

		{
			"newest",
			list{
				answers(with(of("a", "1.18", 1), strategy(ballot.Newest))),
				answers(with(of("b", "1.19", 3), strategy(ballot.Newest))), answers(
					with(of("c", "1.19", 2), strategy(ballot.Newest))),
			},
			asked(free()),
			verdict{choose, "c", ""},
		},
		{"pinned keeps the holder", list{
			answers(with(of("a", "1.18", 1), strategy(ballot.Pinned))),
			answers(with(of("b", "1.19", 2), strategy(ballot.Pinned))),
		}, over(heldBy("b")), verdict{keep, "b", ""}},
		{"pinned, free: the oldest", list{
			answers(with(of("a", "1.18", 2), strategy(ballot.Pinned))),
			answers(with(of("b", "1.19", 1), strategy(ballot.Pinned))),
		}, over(free()), verdict{choose, "b", ""}},

		{
			"a pin goes before the strategy",
			list{answers(of("a", "1.18", 1)), answers(of("b", "1.19", 2))},
			pinned(asked(heldBy("a")), "b"),
			verdict{choose, "b", ""},
		},
		{
			"a pin must be asked",
			list{of("a", "1.18", 1), of("b", "1.19", 2), of("c", "1.17", 3)},
			pinned(heldBy("a"), "b"),
			verdict{ask, "b c", ""},
		},
		{
			"a pin that does not answer",
			list{answers(of("a", "1.18", 1)), of("b", "1.19", 2)},
			pinned(over(heldBy("a")), "b"),
			verdict{keep, "a", "PinAbsent"},
		},
		{
			"a pin that is no candidate",
			list{answers(of("a", "1.18", 1))},
			pinned(over(heldBy("a")), "b"),
			verdict{keep, "a", "PinAbsent"},
		},
		{
			"a pin decides a conflict",
			list{
				answers(of("a", "1.19", 1)),
				answers(with(of("b", "1.19", 2), strategy(ballot.Newest))),
			},
			pinned(over(heldBy("a")),
				"b"),
			verdict{choose, "b", "StrategyConflict"},
		},
		{
			"a pin of a conflict that does not answer",
			list{
				answers(of("a", "1.19", 1)),
				with(of("b", "1.19", 2), strategy(ballot.Newest)),
			},
			pinned(over(heldBy("a")), "b"),
			verdict{
				leave, "",
				"StrategyConflict PinAbsent",
			},
		},
		{
			"a pin of a conflict is asked",
			list{of("a", "1.19", 1), with(of("b", "1.19", 2), strategy(ballot.Newest))},
			pinned(heldBy("a"), "b"),
			verdict{ask, "b", "StrategyConflict"},
		},
		{
			"a pinned holder stays",
			list{of("a", "1.18", 1), of("b", "1.19", 2)},
			pinned(heldBy("b"), "b"),
			verdict{keep, "b", ""},
		},

		{
			"without the holder",
			list{answers(of("a", "1.18", 1)), answers(of("b", "1.19", 2))},
			without(asked(heldBy("a")), ballot.Ref{ID: "a", Created: 1}),
			verdict{choose, "b", ""},
		},
		{
			"without the holder, nobody asked",
			list{of("a", "1.18", 1), of("b", "1.19", 2), of("c", "1.20", 3)},
			without(heldBy("a"), ballot.Ref{ID: "a", Created: 1}),
			verdict{ask, "b c", ""},
		},
		{
			"without the only one",
			list{answers(of("a", "1.18", 1))},
			without(asked(heldBy("a")), ballot.Ref{ID: "a", Created: 1}),
			verdict{keep, "a", ""},
		},
		{
			"without one that has started anew",
			list{answers(of("a", "1.18", 7)), answers(of("b", "1.19", 2))},
			without(asked(free()), ballot.Ref{ID: "a", Created: 1}),
			verdict{choose, "a", ""},
		},
		{
			"without another of the same age",
			list{answers(of("a", "1.18", 1)), answers(of("b", "1.19", 2))},
			without(asked(free()), ballot.Ref{ID: "c", Created: 1}),
			verdict{choose, "a", ""},
		},
		{
			"without the holder, the others are silent",
			list{answers(of("a", "1.18", 1)), of("b", "1.19", 2)},
			without(over(heldBy("a")), ballot.Ref{ID: "a", Created: 1}),
			verdict{keep, "a", ""},
		},
		{
			"a pin goes before without",
			list{answers(of("a", "1.18", 1)), answers(of("b", "1.19", 2))},
			pinned(without(asked(free()), ballot.Ref{ID: "a", Created: 1}), "a"),
			verdict{choose, "a", ""},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := got(ballot.Elect(tt.c, tt.p)); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// The verdict names excluded candidates, with field, value and what is allowed. It also names silent candidates.
func TestElectNames(t *testing.T) {
	v := ballot.Elect([]ballot.Candidate{
		with(of("z", "1.19", 9), func(c *ballot.Candidate) { c.Record.BinaryVersion, c.Record.Strategy = "1.19", "" }),
		with(of("y", "1.19", 8), dead), of("c", "1.19", 3), answers(of("d", "1.19", 4)), of("b", "1.19", 2),
		with(of("x", "1.19", 7), func(c *ballot.Candidate) { c.Record.LeaseName = "other" }),
	}, over(heldBy("c")))
	want := []ballot.Exclusion{
		{ID: "x", Reason: `lease_name: "other" is not valid; allowed: "janitor", under which the record is`},
		{ID: "y", Reason: "nobody lives who wrote the record", Dead: true},
		{
			ID: "z",
			Reason: `binary_version: "1.19" is not valid; allowed: a version such as "1.19.0" or "1.20.0-rc.1", without a leading "v", of 128 bytes at the most; ` +
				`strategy: missing; allowed: OldestEmulationVersion, Newest or Pinned; or the name of a strategy of your own: 1 to 63 letters, digits, ".", "/", "_" and "-"`,
		},
	}
	if diff := cmp.Diff(want, v.Excluded); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"b", "c"}, v.Silent); diff != "" {
		t.Error(diff)
	}
	if v.Strategy != ballot.OldestEmulationVersion || v.Action != ballot.Keep {
		t.Errorf("%+v", v)
	}
	text := v.Conditions[0].Message + "\n" + v.Conditions[1].Message
	if !strings.HasPrefix(text, "x cannot be chosen: lease_name") ||
		!strings.Contains(text, "\nz cannot be chosen: binary_version") {
		t.Error(text)
	}
}

func TestConditionsInWords(t *testing.T) {
	conflict := ballot.Elect([]ballot.Candidate{
		of("a", "1.19", 1), with(of("b", "1.19", 2), strategy(ballot.Newest)),
		of("c", "1.18", 3),
	}, free())
	third := ballot.Elect([]ballot.Candidate{with(of("b", "1.19", 2), strategy("mine"))}, free())
	silent := ballot.Elect([]ballot.Candidate{of("b", "1.19", 2)}, over(free()))
	pin := ballot.Elect([]ballot.Candidate{of("b", "1.19", 2)}, pinned(free(), "x"))
	for _, tt := range []struct {
		v    ballot.Verdict
		want string
	}{
		{conflict, "candidates of the highest version, 1.19.0, name different strategies: Newest, " +
			"OldestEmulationVersion"},
		{third, "the strategy mine of the highest version, 1.19.0, is another program's"},
		{silent, "none of 1 candidates has answered"},
		{pin, "x is pinned, and is no candidate that can be chosen"},
	} {
		if len(tt.v.Conditions) != 1 || tt.v.Conditions[0].Message != tt.want {
			t.Errorf("got %+v, want %s", tt.v.Conditions, tt.want)
		}
	}
}

func anyCandidate(id string) *rapid.Generator[ballot.Candidate] {
	return rapid.Custom(func(t *rapid.T) ballot.Candidate {
		version := rapid.SampledFrom([]string{"1.2.0", "1.18.0", "1.19.0", "1.19.0-rc.1", "1.19"})
		c := ballot.Candidate{
			ID: id, Created: rapid.Uint64Range(1, 3).Draw(t, "created"),
			Session: rapid.SampledFrom([]string{"", "s", "s", "s"}).Draw(t, "session"),
		}
		c.Record = ballot.Record{
			LeaseName: rapid.SampledFrom([]string{lease, lease, lease, "other"}).Draw(t,
				"lease"), BinaryVersion: version.Draw(t, "binary"),
			EmulationVersion: rapid.SampledFrom([]string{"", "1.2.0", "1.18.0"}).Draw(t, "emulation"),
			Strategy: rapid.SampledFrom([]ballot.Strategy{
				ballot.OldestEmulationVersion,
				ballot.OldestEmulationVersion, ballot.Newest, ballot.Pinned, "mine",
			}).Draw(t, "strategy"),
			Round: rapid.SampledFrom([]string{"", "round-1", round}).Draw(t, "round"),
		}
		return c
	})
}

func anyInput(t *rapid.T) ([]ballot.Candidate, ballot.Pings) {
	ids := []string{"a", "b", "c", "d", "e"}
	var all []ballot.Candidate
	for _, id := range ids[:rapid.IntRange(0, len(ids)).Draw(t, "n")] {
		all = append(all, anyCandidate(id).Draw(t, id))
	}
	anyID := rapid.SampledFrom(append(ids, "race"))
	p := ballot.Pings{
		Lease: lease, Held: rapid.Bool().Draw(t,
			"held"), Round: rapid.SampledFrom([]string{"", round, round}).Draw(t, "open"),
		Over: rapid.Bool().Draw(t, "over"), Pin: rapid.SampledFrom([]string{"", "", "a", "c", "race"}).Draw(t, "pin"),
	}
	if p.Held {
		p.Holder = anyID.Draw(t, "holder")
	}
	for range rapid.IntRange(0, 2).Draw(t, "withouts") {
		p.Without = append(p.Without,
			ballot.Ref{ID: anyID.Draw(t, "without"), Created: rapid.Uint64Range(1, 3).Draw(t, "age")})
	}
	return all, p
}

// For any content of the records, the verdict does not depend on their order, and chooses at most one candidate, which
// lives and has answered. If the chosen candidate takes the lease, the next verdict keeps it.
func TestElectAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, p := anyInput(t)
		v := ballot.Elect(all, p)
		shuffled := rapid.Permutation(all).Draw(t, "order")
		if diff := cmp.Diff(v, ballot.Elect(shuffled, p)); diff != "" {
			t.Fatalf("another order, another verdict:\n%s", diff)
		}
		if v.Action == ballot.Choose {
			i := slices.IndexFunc(all, func(c ballot.Candidate) bool { return c.ID == v.Chosen })
			if i < 0 || all[i].Session == "" || all[i].Record.Round != p.Round || all[i].Record.Validate() != nil ||
				all[i].Record.LeaseName != lease {
				t.Fatalf("%q was chosen", v.Chosen)
			}
			if p.Held && v.Chosen == p.Holder {
				t.Fatal("the holder was chosen again")
			}
			// If the chosen candidate takes the lease, it keeps the lease, with the same answers.
			next := p
			next.Held, next.Holder = true, v.Chosen
			if after := ballot.Elect(all, next); p.Over && (after.Action != ballot.Keep || after.Chosen != v.Chosen) {
				t.Fatalf("%q was chosen, then %+v", v.Chosen, after)
			}
		}
		if v.Action == ballot.Keep && (!p.Held || v.Chosen != p.Holder) {
			t.Fatalf("kept %q", v.Chosen)
		}
		if v.Action == ballot.Wait && (p.Over || p.Round == "") || v.Action == ballot.Ask && p.Round != "" {
			t.Fatalf("%s in %+v", v.Action, p)
		}
		if v.Action == ballot.Ask && slices.Contains(v.Above, p.Holder) && p.Held {
			t.Fatalf("the holder goes before itself: %v", v.Above)
		}
	})
}

// If a leader was chosen from too few answers, it later yields to the candidate that is best by all answers. The
// exception is the strategy Pinned, with which holders keep the lease.
func TestFewerAnswersGiveNoBetterLeader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, p := anyInput(t)
		p = over(p)
		fewer := slices.Clone(all)
		for i := range fewer {
			if rapid.Bool().Draw(t, "missed") {
				fewer[i].Record.Round = ""
			}
		}
		saw, missed := ballot.Elect(all, p), ballot.Elect(fewer, p)
		stays := saw.Strategy == ballot.Pinned && saw.Chosen != p.Pin
		if saw.Action != ballot.Choose || missed.Action != ballot.Choose || saw.Chosen == missed.Chosen || stays {
			return
		}
		// The better candidate must open a round.
		next := p
		next.Held, next.Holder, next.Round = true, missed.Chosen, ""
		if v := ballot.Elect(all, next); v.Action != ballot.Ask || !slices.Contains(v.Above, saw.Chosen) {
			t.Fatalf("%q leads, and not %q: %+v", missed.Chosen, saw.Chosen, v)
		}
	})
}
