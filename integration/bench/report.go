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

// Result is one measured value and the goal that it has, if any.
type Result struct {
	Name  string  `json:"name"` // benchmark/part/what
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  string  `json:"goal"` // such as ">= 0.6"; empty: measured for comparison only
	Met   bool    `json:"met"`  // true without a goal
}

// goal is what a value should be. The zero value is no goal.
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

func (g goal) String() string {
	if g.op == "" {
		return ""
	}
	return g.op + " " + strconv.FormatFloat(g.limit, 'g', -1, 64)
}

type report struct{ results []Result }

// add records a value, and says it at once to whoever watches.
func (r *report) add(name string, value float64, unit string, g goal) {
	res := Result{Name: name, Value: round(value), Unit: unit, Goal: g.String(), Met: g.met(value)}
	r.results = append(r.results, res)
	fmt.Fprintf(os.Stderr, "  %s = %s %s  %s %s\n", name, number(res.Value), unit, res.Goal, verdict(res))
}

// round keeps four digits; more would only look exact.
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
	_ = table.Flush() // to a terminal or a pipe; nothing could be done about it
}

// write puts the results into a file. Those of benchmarks that did not run now stay as they are there.
func (r *report) write(path string) error {
	var all []Result
	data, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(data, &all) != nil {
		all = nil // not ours, or of another version
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	all = slices.DeleteFunc(all, func(old Result) bool {
		return slices.ContainsFunc(r.results, func(now Result) bool { return sameGroup(old.Name, now.Name) })
	})
	data, err = json.MarshalIndent(append(all, r.results...), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// sameGroup compares all but the last part of two names.
func sameGroup(a, b string) bool {
	return a[:max(0, strings.LastIndexByte(a, '/'))] == b[:max(0, strings.LastIndexByte(b, '/'))]
}
