package preparer_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/register"
)

// checked has a health script that passes while the pod's home has the file "well", and appends to "runs".
func (b *bench) checked() manifest.Manifest {
	m := b.sleeper("checked")
	b.addProgram(
		m, "bin/check",
		`echo "$POD_INDEX" >> "$POD_HOME/runs"; test -e "$POD_HOME/$1" || { echo "it is  ill"; exit 1; }`,
	)
	fast, timeout := field.Duration(time.Second), field.Duration(5*time.Second) // enough for a busy machine
	m.Health = &manifest.Health{
		Script: &manifest.ScriptCheck{Path: "bin/check", Args: []string{"well"}}, Interval: &fast, Timeout: &timeout,
	}
	return m
}

func (b *bench) addProgram(m manifest.Manifest, path, script string) {
	b.t.Helper()
	file := filepath.Join(b.artifacts.dir, m.Launchables[0].Artifact.SHA256, path)
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) homeFile(index int, name string) string {
	return filepath.Join(b.cfg.Dir, "homes", identity(index).RCID+".main."+string(rune('0'+index)), name)
}

func (b *bench) heal(index int) {
	b.t.Helper()
	if err := os.WriteFile(b.homeFile(index, "well"), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func TestHealthScriptDecidesAboutAvailability(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	digest := b.upload(b.checked())
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateUnhealthy, 10, "exit status 1 it is ill")
	pid := b.pid(0)
	b.heal(0)
	before := b.awaitReady(0, digest, 10)
	id := register.ServiceID(b.cfg.Node.Name, identity(0))
	b.eventually(func() error {
		if !b.services()[id] {
			return errors.New("the check does not pass at the local agent")
		}
		return nil
	})

	// Meanwhile the pod stays available.
	a.stop()
	b.start()
	b.write(intent(0, digest, pod.Running, 20))
	if r := b.awaitReady(0, digest, 20); !r.Since.Equal(before.Since) {
		t.Errorf("the reality was %+v and is %+v", before, r)
	}
	if err := os.Remove(b.homeFile(0, "well")); err != nil {
		t.Fatal(err)
	}
	b.awaitState(0, pod.StateUnhealthy, 20, "it is ill")
	b.mustKeepPID(0, pid)

	b.write(intent(0, digest, pod.Stopped, 30))
	b.awaitState(0, pod.StateStopped, 30, "")
	if err := os.Remove(b.homeFile(0, "runs")); err != nil {
		t.Fatal(err)
	}
	b.write(intent(1, digest, pod.Running, 10)) // while its script runs, the first script would run too
	b.awaitState(1, pod.StateUnhealthy, 10, "it is ill")
	if _, err := os.Stat(b.homeFile(0, "runs")); err == nil {
		t.Error("the script of a stopped pod was run")
	}
}

// During the initial delay the check does not run, and the pod is not unhealthy.
func TestCheckDoesNotRunDuringTheInitialDelay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.checked()
	delay := field.Duration(2 * time.Second)
	m.Health.InitialDelay = &delay
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateRunning, 10, "")
	started := b.procs(0)[0].StartedAt
	b.heal(0)
	b.awaitReady(0, digest, 10)
	if took := time.Since(started); took < 2*time.Second {
		t.Errorf("checked %s after the start", took)
	}
}

// The reality has a failed HTTP check's answer, shortened and printable. A change of numbers alone does not change it.
func TestTheReportHasTheAnswerToAFailedCheck(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	counted := &countedServices{Services: b.client.Services}
	b.cfg.Services = counted
	b.start()
	m := b.server("1")
	m.Launchables[0].Env["ILL"] = "db  is down\x1b[31m"
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	r := b.awaitState(0, pod.StateUnhealthy, 10, "503 Service Unavailable Output: db is down[31m, asked ")
	if !strings.Contains(r.Message, `its check "health of web" does not pass`) {
		t.Errorf("the message is %q", r.Message)
	}
	_, index, err := b.reality(0)
	if err != nil {
		t.Fatal(err)
	}
	id := register.ServiceID(b.cfg.Node.Name, identity(0))
	outputs := map[string]bool{}
	b.eventually(func() error { // the check's output changes at each run
		local, err := b.client.Services.LocalServices(t.Context(), register.MetaNode, b.cfg.Node.Name)
		if outputs[local[id].Output] = true; err == nil && len(outputs) < 4 {
			err = fmt.Errorf("the outputs are %v", outputs)
		}
		return err
	})
	looks := counted.looks.Load()
	b.eventually(func() error {
		if counted.looks.Load() < looks+3 {
			return errors.New("the agent was not read often enough")
		}
		return nil
	})
	b.write(intent(1, digest, pod.Stopped, 5))
	b.awaitState(1, pod.StateStopped, 5, "") // after this report, all realities have been compared
	if r, now, err := b.reality(0); err != nil || now != index {
		t.Errorf("the reality was written again: index %d, then %d (%v), %+v", index, now, err, r)
	}
}

// A failed TCP check reports the connection's error.
func TestTheReportHasTheErrorOfAFailedConnection(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	m := b.sleeper("1")
	interval := field.Duration(time.Second)
	m.Ports = []manifest.Port{{Name: "main", Port: httpPort}}
	m.Health = &manifest.Health{TCP: &manifest.TCPCheck{Port: "main"}, Interval: &interval}
	b.write(intent(0, b.upload(m), pod.Running, 10))
	b.awaitState(
		0, pod.StateUnhealthy, 10, `its check "health of web" does not pass at the local Consul agent: dial tcp `,
	)
	b.awaitState(0, pod.StateUnhealthy, 10, "connection refused")
}
