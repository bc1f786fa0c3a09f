package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

func TestRecords(t *testing.T) {
	r := recordsIn(t.TempDir())
	rec := record{Spec: localSpec{Process: runtime.Process{
		ID: "a.b", Command: []string{"/x"}, Dir: "/",
		LogPath: "/l",
	}}, Desired: wantRun, PID: 7}
	if err := r.Save(rec); err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.b.json.tmp", "{") // left by a crash before the file was renamed
	write(".spare-9.tmp", "{") // left by an earlier release
	write("half.json", "{")
	write("other.json", `{"spec":{"id":"x"},"desired":"run"}`)
	write("future.json", `{"spec":{"id":"future"},"desired":"pause"}`)
	good, bad, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(good) != 1 || good["a.b"].PID != 7 {
		t.Errorf("read %+v, want the one that was saved", good)
	}
	for _, id := range []string{"half", "other", "future"} {
		if bad[id] == nil {
			t.Errorf("%s.json was not reported", id)
		}
	}
	for _, name := range []string{"a.b.json.tmp", ".spare-9.tmp"} {
		if _, err := os.Stat(filepath.Join(r.Dir, name)); !os.IsNotExist(err) {
			t.Errorf("the unfinished file %s: %v", name, err)
		}
	}
	for range 2 {
		if err := r.Forget("a.b"); err != nil {
			t.Error(err)
		}
	}
}

// A process that cannot be taken over does not affect others.
func TestOneFailedAdoption(t *testing.T) {
	dir := t.TempDir()
	r := recordsIn(filepath.Join(dir, stateName))
	if err := os.Mkdir(r.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	boot, err := proc.BootID()
	if err != nil {
		t.Fatal(err)
	}
	self, err := proc.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for id, pid := range map[string]int{"adrift": -5, "runs": self.PID, "stopped": 0} { // the kernel refuses pid -5
		rec := record{
			Spec: localSpec{Process: runtime.Process{
				ID: id, Command: []string{"/x"}, Dir: "/",
				LogPath: "/l",
			}}, Desired: wantRun, PID: pid, Start: self.Start, Boot: boot,
		}
		if pid == 0 {
			rec.Desired = wantStop
		}
		if err := r.Save(rec); err != nil {
			t.Fatal(err)
		}
	}
	s, err := newSupervisor(Config{Dir: dir}.withDefaults())
	if err != nil {
		t.Fatalf("none of them is kept: %v", err)
	}
	defer s.close()
	for id, want := range map[string]runtime.Phase{
		"adrift": runtime.Unknown, "runs": runtime.Running,
		"stopped": runtime.Stopped,
	} {
		if got, _ := s.procs[id].status(); got.Phase != want {
			t.Errorf("%s is %s (%s), want %s", id, got.Phase, got.Message, want)
		}
	}
	if _, err := s.procs["adrift"].recordStop(); err == nil {
		t.Error("the stop of an unknown process was confirmed")
	}

	// The process is supervised as soon as it is found.
	s.tend = func(func(ctx, recalled context.Context)) context.CancelFunc { return func() {} }
	p := s.procs["adrift"]
	p.rec.PID, p.rec.Start = self.PID, self.Start
	p.takeOver(t.Context())
	if got, _ := p.status(); got.Phase != runtime.Running || p.broken != nil {
		t.Errorf("after it was found: %s, %v", got.Phase, p.broken)
	}
}

// A change after a quiet time is sent soon, and changes in a busy time together.
func TestGap(t *testing.T) {
	var s supervisor
	now := time.Now()
	for i, step := range []struct{ after, want time.Duration }{
		{0, coalesce}, {busy, busy}, {2 * busy, busy}, {2*busy + 1, coalesce}, {1, busy},
	} {
		now = now.Add(step.after)
		if got := s.gap(now); got != step.want {
			t.Errorf("change %d waits %s, want %s", i, got, step.want)
		}
	}
}

// An earlier answer with the changes since then equals the full answer.
func TestChangesOverABase(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &supervisor{instance: newInstance(), procs: map[string]*process{}, wake: make(chan struct{})}
		answer := func(base uint64) snapshot {
			snap, changed := s.watch(context.Background(), 0, base)
			if !changed {
				t.Fatal("a watch from zero was not answered")
			}
			return snap
		}
		id := rapid.StringMatching("[a-e]")
		answers := []snapshot{
			{},
			{
				Cursor:    s.instance + 1<<33,
				Processes: []localStatus{{Spec: localSpec{Process: runtime.Process{ID: "of another supervisor"}}}},
			},
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				full := answer(0)
				base := rapid.SampledFrom(answers).Draw(t, "base")
				if diff := cmp.Diff(full, answer(base.Cursor).over(base)); diff != "" {
					t.Errorf("over %+v:\n%s", base, diff)
				}
				answers = append(answers, full)
			},
			"change": func(t *rapid.T) {
				id := id.Draw(t, "id")
				p := s.slot(id)
				p.set(record{
					Spec: localSpec{Process: runtime.Process{ID: id}}, Desired: wantRun,
					PID: rapid.IntRange(1, 1<<20).Draw(t, "pid"),
				}, nil, runtime.Running, "")
				if snap := answer(s.instance | uint64(s.version-1)); snap.Base != 0 && len(snap.Processes) != 1 {
					t.Errorf("a change of one process was reported as %+v", snap)
				}
			},
			"slot":   func(t *rapid.T) { s.slot(id.Draw(t, "id")) },
			"remove": func(t *rapid.T) { s.forget(id.Draw(t, "id")) },
		})
	})
}

// A supervisor that does not know bases answers with all processes.
func TestFullAnswerOverABase(t *testing.T) {
	var full snapshot
	if err := json.Unmarshal([]byte(`{"processes":[{"spec":{"id":"b"}}],"cursor":9}`), &full); err != nil {
		t.Fatal(err)
	}
	base := snapshot{Cursor: 8, Processes: []localStatus{{Spec: localSpec{Process: runtime.Process{ID: "a"}}}}}
	if diff := cmp.Diff(full, full.over(base)); diff != "" {
		t.Errorf("%s", diff)
	}
}

// A hanging rotation of one log does not delay others, and is not started twice.
func TestRotatorGoesOnBesideAStalledLog(t *testing.T) {
	stalled, others := make(chan struct{}), make(chan string)
	r := rotator{rotate: func(path string, _ int64, _ int) error {
		if path == "stalled" {
			<-stalled
			return nil
		}
		others <- path
		return nil
	}}
	for range 3 {
		for _, path := range []string{"stalled", "a", "b"} {
			r.begin(path, 1, 1, func(msg string, fields map[string]any) { t.Error(msg, fields) })
		}
		if first, second := <-others, <-others; first == second {
			t.Errorf("%s was rotated twice", first)
		}
		// Until both are over, a round skips these logs.
		for busy := 2; busy > 1; {
			busy = busyLogs(&r)
			goruntime.Gosched()
		}
	}
	close(stalled)
	r.under.Wait()
	if n := busyLogs(&r); n > 0 {
		t.Errorf("%d are taken for busy", n)
	}
}

func busyLogs(r *rotator) (n int) {
	r.busy.Range(func(any, any) bool {
		n++
		return true
	})
	return n
}

// This release and earlier ones can read each other's specifications.
func TestSpecsAreWrittenAsBefore(t *testing.T) {
	const former = `{"id":"a","pod":{"rc_id":"rc1","role":"web","index":3},"revision":7,"name":"main","command":["/x"],"env":["A=1"],"dir":"/d","log_path":"/l",` +
		`"log_bytes":5,"log_keep":2,"stop_grace":1000,"stop_signal":"SIGINT","restart":{"policy":"never","min":1,"max":2,"stable":3},` +
		`"isolation":{"uid":1,"gid":2,"groups":[3],"no_new_privileges":true,"tmp":"/t","cgroup":"/c/a","cpu":4,"memory":5,"pids":6},"hold_after_boot":true}`
	asked := runtime.Spec{
		Process: runtime.Process{
			ID: "a", Pod: pod.Identity{
				RCID: "rc1", Role: "web",
				Index: 3,
			}, Revision: 7, Name: "main", Command: []string{"/x"}, Env: []string{"A=1"}, Dir: "/d",
			LogPath: "/l", LogBytes: 5, LogKeep: 2, StopGrace: 1000, StopSignal: "SIGINT",
			Restart: runtime.Restart{Policy: runtime.Never, Min: 1, Max: 2, Stable: 3}, StartSuspended: true,
		},
		Isolation: &runtime.Isolation{
			UID: 1, GID: 2, Groups: []int{3}, NoNewPrivileges: true, Tmp: "/t", CPU: 4,
			Memory: 5, PIDs: 6,
		},
	}
	var read localSpec
	if err := json.Unmarshal([]byte(former), &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(asked, read.asked()); diff != "" || read.cgroup() != "/c/a" || read.validate() != nil {
		t.Errorf("read with the cgroup %q, %v:\n%s", read.cgroup(), read.validate(), diff)
	}
	client := Client{cfg: ClientConfig{Cgroup: "/c"}}
	sent, err := json.Marshal(localSpec{Process: asked.Process, Isolation: client.confine(asked.Isolation, asked.ID)})
	if err != nil {
		t.Fatal(err)
	}
	var was, is map[string]any
	if err := errors.Join(json.Unmarshal([]byte(former), &was), json.Unmarshal(sent, &is)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, is); diff != "" {
		t.Errorf("written otherwise:\n%s", diff)
	}
	asked.Watchdog = &runtime.Watchdog{Note: "/n", Timeout: 6}
	if sent, err = json.Marshal(asked.Process); err != nil ||
		!strings.Contains(string(sent), `"watchdog":{"note":"/n","timeout":6}`) {
		t.Errorf("a watchdog is written as %s, %v", sent, err)
	}
	for want, c := range map[string]confine.Confinement{
		`directory "cgroup" is`:    {Cgroup: "cgroup"},
		"pids 5) are not valid wi": {Isolation: runtime.Isolation{PIDs: 5}},
	} {
		if err := (localSpec{Process: asked.Process, Isolation: &c}).validate(); !errors.Is(err, runtime.ErrInvalid) ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("got %v, want an error with %q and what is allowed", err, want)
		}
	}
}

// watchers have a watchdog with the same new note.
func watchers(tb testing.TB, count int) (s *supervisor, path string) {
	tb.Helper()
	now, err := proc.Now()
	if err != nil {
		tb.Fatal(err)
	}
	path = filepath.Join(tb.TempDir(), "note")
	if err := proc.WriteNote(path, now); err != nil {
		tb.Fatal(err)
	}
	s = &supervisor{
		cfg: Config{}.withDefaults(), boot: now.Boot, procs: map[string]*process{},
		wake: make(chan struct{}), reads: map[string]chan note{},
	}
	for i := range count {
		id := fmt.Sprintf("p%03d", i)
		spec := localSpec{Process: runtime.Process{
			ID:       id,
			Watchdog: &runtime.Watchdog{Note: path, Timeout: time.Minute + time.Duration(i)},
		}}
		s.procs[id] = &process{sup: s, rec: record{Spec: spec, Desired: wantRun}, dog: watchdog{recall: func() {}}}
	}
	return s, path
}

// The next look is due after mostBetweenLooks, or with the first process. A read serves all processes with the same
// note.
func TestLookAtNotes(t *testing.T) {
	t.Parallel()
	s, note := watchers(t, 3)
	if next := s.lookAtNotes(t.Context()); next != mostBetweenLooks {
		t.Errorf("looks again in %s", next)
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.all() {
		if p.dog.renewed == (proc.Moment{}) || p.toStop() {
			t.Errorf("%+v", p.dog)
		}
		p.dog.renewed.Up -= time.Minute - 5*time.Second
	}
	if next := s.lookAtNotes(t.Context()); next > 5*time.Second || next < 4*time.Second {
		t.Errorf("looks again in %s, the first is due in 5 s", next)
	}
	s.procs["p001"].dog.renewed.Up -= time.Minute
	s.procs["p002"].op.Lock() // as if a client's request waits for the disk
	s.procs["p002"].dog.renewed.Up -= time.Minute
	if next := s.lookAtNotes(t.Context()); next > 5*time.Second || next < 4*time.Second {
		t.Errorf("looks again in %s, the last is due in 5 s", next)
	}
	for id, want := range map[string]bool{"p000": false, "p001": true, "p002": true} {
		if s.procs[id].toStop() != want {
			t.Errorf("%s stops: %t", id, !want)
		}
	}
	if none, _ := watchers(t, 0); none.lookAtNotes(t.Context()) != time.Hour {
		t.Error("looks though there is nothing to look at")
	}
}

// BenchmarkLookAtNotes measures one look at the notes.
func BenchmarkLookAtNotes(b *testing.B) {
	for _, due := range []bool{false, true} {
		b.Run(fmt.Sprintf("500/due=%t", due), func(b *testing.B) {
			s, _ := watchers(b, 500)
			for b.Loop() {
				if due {
					s.procs["p000"].dog.renewed = proc.Moment{}
				}
				s.lookAtNotes(b.Context())
			}
		})
	}
}

// If the run loop has ended, a stop that cannot be written is confirmed only when it is on the disk, also on another
// request. A later start is not affected.
func TestStopThatNoRunLoopHasSeen(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	s := &supervisor{records: recordsIn(missing), procs: map[string]*process{}, wake: make(chan struct{})}
	p := s.slot("a")
	spec := localSpec{Process: runtime.Process{
		ID: "a", Command: []string{"/bin/true"}, Dir: "/",
		LogPath: "/l", StopGrace: 1,
	}}
	p.set(record{Spec: spec, Desired: wantStop, Done: true}, errDiskHangs, runtime.Exited, "")
	p.ended = make(chan struct{})
	close(p.ended)
	for range 2 {
		if err := s.stop(t.Context(), "a"); err == nil {
			t.Error("a stop was confirmed that is not on the disk")
		}
		if st, _ := p.status(); st.Phase == runtime.Stopped {
			t.Error("it is shown as stopped")
		}
	}
	if err := os.Mkdir(missing, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(s.records.Path("a")); err != nil ||
		!strings.Contains(string(data), `"desired":"stop"`) {
		t.Errorf("the record is %.200s, %v", data, err)
	}
	p.set(record{Spec: spec, Desired: wantRun}, errDiskHangs, runtime.Running, "")
	if err := p.confirm(); err != nil || p.current().Desired != wantRun {
		t.Errorf("a later start is %s, %v", p.current().Desired, err)
	}
}
