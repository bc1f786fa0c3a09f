package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/integration/checker"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

type report struct {
	Seed       int64             `json:"seed"`
	Task       *task             `json:"task,omitempty"`
	Started    time.Time         `json:"started"`
	Length     string            `json:"length"`
	Operations map[string]int    `json:"operations"`
	Failed     map[string]int    `json:"failed_operations"`     // some operations fail under faults
	LastErrors map[string]string `json:"last_errors,omitempty"` // of each kind of operation
	Faults     map[string]int    `json:"faults"`
	Told       map[string]int    `json:"told,omitempty"`         // pushes to nodes, by result
	Slow       string            `json:"slow_network,omitempty"` // how it was made slow
	Hung       int               `json:"servers_hung,omitempty"` // servers that hung in a restore and were restarted
	Converged  string            `json:"converged_after"`
	Late       []string          `json:"late,omitempty"` // broken promises that are about time
	Judgement  *checker.Result

	mu      sync.Mutex
	verbose bool
}

const reportFile = "report.json"

func newReport(cfg config) *report {
	return &report{
		Seed: cfg.seed, Task: &task{
			Length: cfg.length, Faults: cfg.faults, Expect: cfg.expect, Rollouts: cfg.rollouts,
			Told: true, Ordered: cfg.ordered, Owners: true,
		},
		verbose: cfg.verbose, Converged: "never",
		Operations: map[string]int{}, Failed: map[string]int{}, LastErrors: map[string]string{},
		Faults: map[string]int{}, Told: map[string]int{},
	}
}

func (r *report) begin() {
	r.Started = time.Now()
	fmt.Printf("the cluster runs; faults begin (seed %d)\n", r.Seed)
}

func (r *report) hang() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Hung++
}

func (r *report) operation(what string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Operations[what]++
	if err != nil {
		r.Failed[what]++
		r.LastErrors[what] = err.Error()
	}
}

// fault notes an attempt. One that the run's end cut short proves nothing.
func (r *report) fault(name, what string, err error, ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil && ended:
		name = cutShort(name)
	case err != nil:
		name = failed(name)
	}
	r.Faults[name]++
	if r.verbose {
		fmt.Printf("%6.1fs %s %s", time.Since(r.Started).Seconds(), name, what)
		if err != nil {
			fmt.Printf(": %v", err)
		}
		fmt.Println()
	}
}

func (r *report) told(err error) {
	how := toldTaken
	switch {
	case errors.Is(err, scale.ErrConflict):
		how = "outdated"
	case errors.Is(err, scale.ErrUnavailable):
		how = "not now"
	case err != nil:
		how = "refused"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Told[how]++
}

// toldTaken: the node had read the intents.
const toldTaken = "taken"

func (r *report) slowBy(how string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Slow = how
}

func (r *report) late(what string) { r.Late = append(r.Late, what) }

// judge lets the checker judge a run, and prints the report, by default the one that the run left.
func judge(cfg config, r *report) (int, error) {
	path := filepath.Join(cfg.dir, reportFile)
	if r == nil {
		r = newReport(cfg)
		r.Task = nil // the file has the task, if there was one
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, r)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return exitHarness, err
		}
	}
	var names []string
	for i := range servers {
		names = append(names, serverName(i))
	}
	result, checkErr := checker.Check(cfg.dir, names, cfg.tracer())
	r.Judgement = result
	data, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err := errors.Join(checkErr, err); err != nil {
		r.print()
		return exitHarness, err
	}
	r.print()
	code, why := r.verdict(cfg.expect)
	switch {
	case why == "":
		return code, nil
	case code == exitHarness:
		return code, fmt.Errorf("%w: %s", checker.ErrHarness, why)
	default:
		return code, errors.New(why)
	}
}

// tracer prints the history of the keys that contain cfg.trace.
func (cfg config) tracer() func(*checker.Write) {
	if cfg.trace == "" {
		return nil
	}
	value := func(k *checker.Key) string {
		if k == nil {
			return "-"
		}
		return fmt.Sprintf("[%d %.8s] %s", k.Index, k.Session, k.Value)
	}
	return func(w *checker.Write) {
		for _, c := range w.Changes {
			if strings.Contains(c.Key, cfg.trace) {
				fmt.Printf("%s %d %s\n  %s\n  %s\n", time.Unix(0, w.At).UTC().Format("15:04:05.000"), w.Index,
					c.Key, value(c.Before), value(c.After))
			}
		}
	}
}

func (r *report) print() {
	fmt.Printf("\nseed %d, %s of faults, converged %s after healing\n", r.Seed, r.Length, r.Converged)
	printCounts("operations", r.Operations)
	printCounts("of these failed, as some do under faults", r.Failed)
	printCounts("faults", r.Faults)
	printCounts("nodes were told of intents", r.Told)
	if r.Slow != "" {
		fmt.Println("slow network by:", r.Slow)
	}
	if r.Hung > 0 {
		fmt.Println("servers that hung in a restore and were restarted:", r.Hung)
	}
	for _, late := range r.Late {
		fmt.Println("VIOLATION", late)
	}
	if r.Judgement == nil {
		return
	}
	fmt.Printf("judged: %d entries of the Raft log, %d changes of records, %d restored snapshots, "+
		"the breaker tripped %d times\n",
		r.Judgement.Entries, r.Judgement.Transactions, r.Judgement.Restores, r.Judgement.Trips)
	if r.Judgement.Restores > 0 {
		fmt.Println("after a restore the epoch was new within", r.Judgement.RenewedAfter.Round(time.Millisecond))
	}
	if n := r.Judgement.Wipes; n > 0 {
		fmt.Printf("everything was deleted %d times; what ran was found again within %s\n", n,
			r.Judgement.AdoptedAfter.Round(time.Millisecond))
	}
	fmt.Printf("of ordered groups %d copies stopped by themselves, and %d indices were given up for that\n",
		r.Judgement.Checked[checker.SelfStopped], r.Judgement.Checked[checker.GivenUpByTime])
	printCounts("checks made", r.Judgement.Checked)
	printCounts("violations", r.Judgement.Count())
	shown := map[string]int{}
	const show = 5 // of each rule
	for _, v := range r.Judgement.Violations {
		if shown[v.Promise+v.Rule]++; shown[v.Promise+v.Rule] <= show {
			fmt.Println("VIOLATION", v)
		}
	}
	if len(r.Judgement.Violations)+len(r.Late) == 0 {
		fmt.Println("no violations")
	}
}

func printCounts(title string, counts map[string]int) {
	if len(counts) == 0 {
		return
	}
	fmt.Printf("%s:", title)
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		fmt.Printf(" %s %d;", key, counts[key])
	}
	fmt.Println()
}
