package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

type Result struct {
	Name  string  `json:"name"`  // benchmark/part/what
	Value float64 `json:"value"` // in the file: the middle value of Runs
	Unit  string  `json:"unit"`
	Goal  string  `json:"goal"` // such as ">= 0.6"; empty: measured for comparison only
	Met   bool    `json:"met"`  // true without a goal
	// all runs, the oldest first
	Runs    []float64 `json:"runs,omitempty"`
	Machine string    `json:"machine,omitempty"` // machine of the last run
}

// goal is what a value should be.
type goal struct {
	op    string
	limit float64
}

func atMost(limit float64) goal  { return goal{"<=", limit} }
func atLeast(limit float64) goal { return goal{">=", limit} }
func below(limit float64) goal   { return goal{"<", limit} }

func (g goal) met(value float64) bool {
	switch g.op {
	case "<=":
		return value <= g.limit
	case ">=":
		return value >= g.limit
	case "<":
		return value < g.limit
	default:
		return true
	}
}

func goalOf(text string) goal {
	var g goal
	if _, err := fmt.Sscan(text, &g.op, &g.limit); err != nil {
		return goal{}
	}
	return g
}

// middle returns the median. For an even number of runs it is the worse of the two middle values, because that value
// was measured.
func (g goal) middle(runs []float64) float64 {
	sorted := slices.Sorted(slices.Values(runs))
	if g.op == ">=" {
		return sorted[(len(sorted)-1)/2]
	}
	return sorted[len(sorted)/2]
}

func (g goal) String() string {
	if g.op == "" {
		return ""
	}
	return g.op + " " + strconv.FormatFloat(g.limit, 'g', -1, 64)
}

type report struct{ results []Result }

func (r *report) add(name string, value float64, unit string, g goal) {
	res := Result{Name: name, Value: round(value), Unit: unit, Goal: g.String(), Met: g.met(value)}
	r.results = append(r.results, res)
	fmt.Fprintf(os.Stderr, "  %s = %s %s  %s %s\n", name, number(res.Value), unit, res.Goal, verdict(res))
}

func round(v float64) float64 {
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return v
	}
	return short
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func verdict(r Result) string {
	switch {
	case r.Goal == "":
		return ""
	case r.Met:
		return "met"
	default:
		return "MISSED"
	}
}

func (r *report) show(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RESULT\tVALUE\tUNIT\tGOAL\t")
	for _, res := range r.results {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", res.Name, number(res.Value), res.Unit, res.Goal, verdict(res))
	}
	_ = table.Flush() // to a terminal or a pipe; an error of the output cannot be mended
}

// write puts the results into a file, and keeps the results of benchmarks that did not run now. If more is true, it
// adds this run's values to those in the file.
func (r *report) write(path, machine string, more bool) error {
	var all []Result
	data, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(data, &all) != nil {
		all = nil // not ours, or of another version
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	now := slices.Clone(r.results)
	for i := range now {
		n := &now[i]
		n.Runs, n.Machine = []float64{n.Value}, machine
		if old := slices.IndexFunc(all, func(old Result) bool { return old.Name == n.Name }); more && old >= 0 {
			n.Runs = append(slices.Clone(all[old].Runs), n.Value)
		}
		g := goalOf(n.Goal)
		n.Value = g.middle(n.Runs)
		n.Met = g.met(n.Value)
	}
	all = slices.DeleteFunc(all, func(old Result) bool {
		return slices.ContainsFunc(now, func(n Result) bool { return sameGroup(old.Name, n.Name) })
	})
	data, err = json.MarshalIndent(append(all, now...), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func sameGroup(a, b string) bool {
	return a[:max(0, strings.LastIndexByte(a, '/'))] == b[:max(0, strings.LastIndexByte(b, '/'))]
}
