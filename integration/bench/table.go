package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

const (
	tableBegin = "<!-- make bench-table -->"
	tableEnd   = "<!-- end -->"
	tableHead  = "| result | goal | measured | spread | unit | machine | met |\n" +
		"| --- | --- | --- | --- | --- | --- | --- |\n"
)

var tablePart = regexp.MustCompile("(?s)" + tableBegin + "\n(.*?)" + tableEnd)

func writeTable(results, page string) error {
	data, err := os.ReadFile(results)
	if err != nil {
		return err
	}
	var all []Result
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("read %s: %w", results, err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	renewed, err := renew(string(text), all)
	if err != nil {
		return fmt.Errorf("renew %s: %w", page, err)
	}
	return os.WriteFile(page, []byte(renewed), 0o644)
}

// renew returns a page with a row for each result with a goal, sorted by name. A row without a result stays, because
// few runs measure everything.
func renew(page string, results []Result) (string, error) {
	part := tablePart.FindStringSubmatch(page)
	if part == nil {
		return "", errors.New("the page has no " + tableBegin)
	}
	rows := map[string]string{}
	for line := range strings.Lines(part[1]) {
		if text, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ := strings.Cut(text, "`")
			rows[name] = line
		}
	}
	for _, r := range results {
		if delete(rows, r.Name); r.Goal != "" {
			rows[r.Name] = row(r)
		}
	}
	var text strings.Builder
	text.WriteString(tableBegin + "\n\n" + tableHead)
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		text.WriteString(rows[name])
	}
	text.WriteString("\n" + tableEnd)
	return tablePart.ReplaceAllLiteralString(page, text.String()), nil
}

// row returns the table's line. The spread is from the lowest to the highest run.
func row(r Result) string {
	spread, met := "", "yes"
	if len(r.Runs) > 1 {
		spread = number(slices.Min(r.Runs)) + " to " + number(slices.Max(r.Runs))
	}
	missed := func(run float64) bool { return !goalOf(r.Goal).met(run) }
	switch {
	case !r.Met:
		met = "**no**"
	case slices.ContainsFunc(r.Runs, missed):
		met = "by the median"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s | %s | %s |\n", r.Name, r.Goal,
		number(r.Value), spread, r.Unit, r.Machine, met)
}

func machine() string {
	model, load := runtime.GOARCH, "unknown"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := regexp.MustCompile(`(?m)^model name\s*: (.+)$`).FindSubmatch(data); found != nil {
			model = string(found[1])
		}
	}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(data), " ")
	}
	return fmt.Sprintf("%d x %s, load %s", runtime.NumCPU(), model, load)
}
