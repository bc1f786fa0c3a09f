package runit

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/runtime"
	"github.com/rcfarm/rcfarm/pkg/runtime/proc"
)

// desired is what was asked for.
type desired string

const (
	wantRun  desired = "run"
	wantStop desired = "stop"
)

// pace is how fast restarts follow each other where the spec says nothing.
type pace struct {
	Min    time.Duration `json:"min"`
	Max    time.Duration `json:"max"`
	Stable time.Duration `json:"stable"` // a run of this length makes the delay start over
}

// run is one process: a pid alone names none.
type run struct {
	PID   int    `json:"pid,omitempty"`   // zero: nothing of it runs
	Start uint64 `json:"start,omitempty"` // see proc.Stat.Start
	Boot  string `json:"boot,omitempty"`
}

// self is the calling process.
func self() (run, error) { return identify(os.Getpid()) }

func identify(pid int) (run, error) {
	boot, err := proc.BootID()
	if err != nil {
		return run{}, err
	}
	st, err := proc.ReadStat(pid)
	return run{PID: pid, Start: st.Start, Boot: boot}, err
}

// find opens the process; one from another boot has exited.
func (p run) find(boot string) (*proc.Process, error) {
	if p.Boot != boot {
		return &proc.Process{PID: noPID}, nil
	}
	return proc.Find(p.PID, p.Start)
}

// find opens what runs, with everything that belongs to it.
func (r *record) find(boot string) (*proc.Process, error) {
	p, err := r.run.find(boot)
	if err == nil {
		p.Cgroup = r.Spec.Cgroup()
	}
	return p, err
}

// noPID is larger than any pid (proc(5), pid_max), so no session and no group bears it.
const noPID = 1 << 30

// record is what is known about one service, in its record.json.
type record struct {
	Spec    runtime.Spec `json:"spec"`
	Desired desired      `json:"desired"`
	Pace    pace         `json:"pace"`
	BootID  string       `json:"boot_id"` // start of the machine that it was last asked to run in, or ran in

	run                 // what runs now, or ended and is not cleared up yet
	Runsv     run       `json:"runsv,omitzero"` // its parent, the only one that is told how it ends
	StartedAt time.Time `json:"started_at,omitzero"`
	Ended     bool      `json:"ended,omitempty"`      // LastExit is of this run: others of its session may still have their grace
	StopBy    time.Time `json:"stop_by,omitzero"`     // when the grace of a stop ends
	Done      bool      `json:"done,omitempty"`       // it ended, nothing of it runs, and its policy leaves it at that
	Starts    int       `json:"starts,omitempty"`     // since it was last asked to run
	ShortRuns int       `json:"short_runs,omitempty"` // in a row, each shorter than Pace.Stable
	NotBefore time.Time `json:"not_before,omitzero"`  // when the next start is due
	LastExit  *pod.Exit `json:"last_exit,omitempty"`
	Message   string    `json:"message,omitempty"` // why it does not run
	Removed   bool      `json:"removed,omitempty"` // being forgotten: the directory goes as soon as its runsv has ended
}

// resting reports whether nothing is to be started.
func (r *record) resting() bool { return r.Desired == wantStop || r.Done }

// hold stops a process that is not to run by itself after a restart of the machine, and reports whether it did.
func (r *record) hold(boot string) bool {
	if !r.Spec.HoldAfterBoot || r.Desired != wantRun || r.BootID == boot {
		return false
	}
	r.Desired, r.run, r.Runsv = wantStop, run{}, run{}
	return true
}

// delay is the pause that the next start needs.
func (r *record) delay() time.Duration {
	return r.Spec.Restart.Delay(r.ShortRuns, r.Pace.Min, r.Pace.Max)
}

// due returns how long the next start has to wait still. A clock that jumped makes that no longer than the delay.
func (r *record) due(now time.Time) time.Duration {
	return min(max(r.NotBefore.Sub(now), 0), r.delay())
}

// grace returns what is left of the grace of a stop, at most all of it.
func (r *record) grace(now time.Time) time.Duration {
	return min(max(r.StopBy.Sub(now), 0), r.Spec.StopGrace)
}

// begin notes a run before it becomes the program.
func (r *record) begin(self, runsv run, now time.Time) {
	r.run, r.Runsv, r.BootID, r.StartedAt = self, runsv, self.Boot, now.UTC()
	r.Ended, r.Message = false, ""
	r.Starts++
}

// failed notes that the program could not be run.
func (r *record) failed(err error, now time.Time) {
	r.run, r.Runsv, r.Message = run{}, run{}, err.Error()
	r.ShortRuns++
	r.NotBefore = now.Add(r.delay())
}

// settle notes that nothing of the run is left. uptime is how long it ran, whatever clocks did meanwhile.
func (r *record) settle(exit pod.Exit, uptime time.Duration) {
	switch {
	case uptime >= r.Pace.Stable:
		r.ShortRuns = 1
	case exit.Unknown:
		r.ShortRuns = max(r.ShortRuns, 1)
	default:
		r.ShortRuns++
	}
	r.run, r.Runsv, r.Ended, r.StopBy = run{}, run{}, false, time.Time{}
	r.LastExit, r.Message = &exit, exit.String()
	r.Done = r.Desired == wantRun && !r.Spec.Restart.Policy.Again(exit)
	r.NotBefore = exit.At.Add(r.delay())
}

// tick is the unit of start times in /proc: USER_HZ, which is 100 on every architecture that Go runs on.
const tick = time.Second / 100

// uptime returns how long ago the run started, by the clock that counts since boot; zero for one of another boot.
func (p run) uptime(boot string) time.Duration {
	var ts unix.Timespec
	if p.Boot != boot || unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return max(time.Duration(ts.Nano())-time.Duration(p.Start)*tick, 0)
}

// unknownExit is that of a process whose parent was not there any more.
func unknownExit(launchable string, now time.Time) pod.Exit {
	return pod.Exit{Launchable: launchable, Code: -1, Unknown: true, At: now.UTC()}
}

// parseExit reads the arguments that runsv gives to finish: the exit status, or -1 and the signal's number.
func parseExit(launchable, code, signal string, now time.Time) pod.Exit {
	exit := unknownExit(launchable, now)
	var status, number int
	if _, err := fmt.Sscan(code, &status); err != nil {
		return exit
	}
	if status >= 0 {
		exit.Code, exit.Unknown = status, false
		return exit
	}
	if _, err := fmt.Sscan(signal, &number); err == nil {
		const coreDumped = 0x80
		if name := unix.SignalName(unix.Signal(number &^ coreDumped)); name != "" {
			exit.Signal, exit.Unknown = name, false
		}
	}
	return exit
}

func parseRecord(data []byte, id string) (record, error) {
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, err
	}
	if rec.Spec.ID != id {
		return rec, fmt.Errorf("it holds the record of %q", rec.Spec.ID)
	}
	if rec.Desired != wantRun && rec.Desired != wantStop {
		return rec, fmt.Errorf("desired: %q is not valid; allowed: run, stop", rec.Desired)
	}
	return rec, rec.Spec.Validate()
}
