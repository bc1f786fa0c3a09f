package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/store"
)

type crons struct {
	e       *env
	program string
	ran     string // file with a line for each run: tick and candidate
	all     map[string]*daemon
}

func (c *crons) start(id, version string) {
	run := fmt.Sprintf("echo $TICK %s >> %s", id, c.ran)
	d := &daemon{e: c.e, name: "cron-" + id, path: c.program, foreign: true, args: []string{
		"-id", id, "-version", version, "-consul-addr", c.e.consul.Addr, "-every", "200ms", "sh", "-c", run,
	}}
	c.e.daemons = append(c.e.daemons, d)
	c.all[id] = d
	d.startAgain()
}

func (c *crons) runs() (ticks, by []string) {
	data, err := os.ReadFile(c.ran)
	if err != nil && !os.IsNotExist(err) {
		c.e.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		tick, id, _ := strings.Cut(strings.TrimSpace(line), " ")
		ticks, by = append(ticks, tick), append(by, id)
	}
	return ticks, by
}

func (c *crons) works(ids ...string) (leader string) {
	c.e.t.Helper()
	_, before := c.runs()
	c.e.within(limit, func() error {
		state, err := election.Read(c.e.t.Context(), c.e.client, store.DefaultPrefix, "cron")
		if err != nil {
			return err
		}
		leader, _ = state.Leader()
		_, by := c.runs()
		n := 0
		for _, id := range by[len(before):] {
			if id == leader {
				n++
			}
		}
		if !slices.Contains(ids, leader) || n < 3 {
			return fmt.Errorf("%q leads and ran %d ticks, want one of %v", leader, n, ids)
		}
		return nil
	})
	return leader
}

// electionSample: three processes of another program share a job that must run once. One after the other is killed,
// paused, asked to yield, or pinned. No tick runs twice.
func electionSample(e *env) {
	e.startConsul("")
	c := &crons{e: e, program: e.example("cron"), ran: filepath.Join(e.dir, "ran"), all: map[string]*daemon{}}
	c.start("b", "1.19.0")
	c.works("b")
	c.start("c", "1.20.0")
	c.start("a", "1.18.0") // the oldest version leads
	c.works("a")

	c.all["a"].signal(syscall.SIGKILL)
	<-c.all["a"].current().ended
	c.works("b")
	c.all["a"].startAgain()
	c.works("a")

	for range 3 { // paused for longer than its session lasts, at any point
		c.all["a"].signal(syscall.SIGSTOP)
		c.works("b")
		c.all["a"].signal(syscall.SIGCONT)
		c.works("a")
	}
	e.rcctl("", "election", "yield", "cron")
	c.works("b")
	e.rcctl("", "election", "pin", "cron", "c")
	c.works("c")
	c.all["c"].signal(syscall.SIGKILL)
	<-c.all["c"].current().ended
	c.works("b")
	e.rcctl("", "election", "pin", "cron", "--clear")
	if shown := e.rcctl("", "election", "show", "cron"); !strings.Contains(shown, "leads cron since") {
		e.t.Errorf("rcctl election show says\n%s", shown)
	}
	for _, d := range c.all {
		d.signal(syscall.SIGKILL)
		<-d.current().ended
	}
	ticks, _ := c.runs()
	sorted := slices.Clone(ticks)
	slices.Sort(sorted)
	if unique := slices.Compact(sorted); len(unique) != len(ticks) {
		e.t.Errorf("%d runs of %d ticks:\n%s", len(ticks), len(unique), strings.Join(ticks, "\n"))
	}
}
