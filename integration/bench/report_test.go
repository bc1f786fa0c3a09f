package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

func TestRenew(t *testing.T) {
	t.Parallel()
	page := "# Page\n\n<!-- make bench-table -->\nold\n" +
		"| `idle/cpu` | stays |\n| `full/rate` | goes |\n" +
		"| `idle/gone` | has no goal any more |\n<!-- end -->\n\nText.\n"
	got, err := renew(page, []Result{
		{Name: "idle/gone", Value: 1, Met: true},
		{Name: "large/halved", Value: 7, Unit: "s", Goal: "<= 5", Runs: []float64{7}, Machine: "2 x A, load 0.1"},
		{
			Name: "full/rate", Value: 0.8, Unit: "ratio", Goal: ">= 0.8", Met: true,
			Runs: []float64{0.9, 0.8, 0.75}, Machine: "2 x A, load 3",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "# Page\n\n<!-- make bench-table -->\n\n" + tableHead +
		"| `full/rate` | >= 0.8 | 0.8 | 0.75 to 0.9 | ratio | 2 x A, load 3 | by the median |\n" +
		"| `idle/cpu` | stays |\n" +
		"| `large/halved` | <= 5 | 7 |  | s | 2 x A, load 0.1 | **no** |\n" +
		"\n<!-- end -->\n\nText.\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if again, err := renew(got, nil); again != got || err != nil {
		t.Errorf("without results: %v\n%s", err, cmp.Diff(got, again))
	}
	if _, err := renew("# Page\n", nil); err == nil {
		t.Error("a page without the part was accepted")
	}
}

// The table of docs/performance.md is as make bench-table writes it, and its benchmarks exist.
func TestTableOfTheDocs(t *testing.T) {
	t.Parallel()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := renew(string(page), nil); again != string(page) || err != nil {
		t.Errorf("%v\n%s", err, cmp.Diff(string(page), again))
	}
	for line := range strings.Lines(tablePart.FindString(string(page))) {
		name, row := strings.CutPrefix(line, "| `")
		if name, _, _ = strings.Cut(name, "/"); row &&
			!slices.ContainsFunc(benchmarks, func(b benchmark) bool { return b.name == name }) {
			t.Errorf("there is no benchmark %s: %s", name, line)
		}
	}
}

// The file has the median of all its runs, and keeps results of other benchmarks.
func TestWriteAddsRuns(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bench.json")
	run := func(name string, value float64, g goal, more bool) {
		t.Helper()
		r := &report{results: []Result{{Name: name, Value: value, Goal: g.String(), Met: g.met(value)}}}
		if err := r.write(path, "here", more); err != nil {
			t.Fatal(err)
		}
	}
	run("idle/cpu", 9, below(1), false)
	run("idle/cpu", 0.5, below(1), false) // replaces the first result
	run("full/rate", 0.9, atLeast(0.8), false)
	run("full/rate", 0.7, atLeast(0.8), true)
	run("idle/cpu", 0.7, below(1), true)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []Result
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := []Result{
		{Name: "full/rate", Value: 0.7, Goal: ">= 0.8", Runs: []float64{0.9, 0.7}, Machine: "here"},
		{Name: "idle/cpu", Value: 0.7, Goal: "< 1", Met: true, Runs: []float64{0.5, 0.7}, Machine: "here"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
