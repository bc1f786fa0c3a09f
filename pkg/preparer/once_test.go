package preparer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// once writes a line to its home at each start, and ends with this status after letGo.
func (b *bench) once(status string) manifest.Manifest {
	const script = `echo started >> "$POD_HOME/runs"; while ! [ -e "$POD_HOME/go" ]; do sleep 0.02; done; exit `
	m := b.pod(script+status, "1")
	m.Launchables[0].Restart = &manifest.Restart{Policy: manifest.RestartNever}
	return m
}

func (b *bench) letGo() {
	b.t.Helper()
	if err := os.WriteFile(b.homeFile(0, "go"), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) mustHaveRunOnce() {
	b.t.Helper()
	if runs := b.text(b.homeFile(0, "runs")); runs != "started\n" {
		b.t.Errorf("it was started %d times", strings.Count(runs, "\n"))
	}
}

// A pod that runs once reports how it ended, and is not started again after a restart of the preparer, by a new
// revision, or after a stop.
func TestPodThatRunsOnceIsNotStartedAgain(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]struct {
		state    pod.State
		hopeless bool
		message  string
	}{
		"0": {pod.StateEnded, false, ""},
		"7": {pod.StateFailed, true, "main: ended with exit status 7; its restart policy does not start it again"},
	} {
		t.Run("exit "+status, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			a := b.start()
			digest := b.upload(b.once(status))
			b.write(intent(0, digest, pod.Running, 10))
			b.pid(0)
			b.letGo()
			ended := func(revision int64) {
				t.Helper()
				r := b.awaitState(0, want.state, revision, want.message)
				if r.LastExit == nil || fmt.Sprint(r.LastExit.Code) != status || r.Available ||
					r.Hopeless != want.hopeless || r.AllEnded != want.hopeless || !r.Ended(digest) {
					t.Errorf("%+v, last exit %+v", r, r.LastExit)
				}
			}
			ended(10)
			a.stop()
			b.start()
			b.write(intent(0, digest, pod.Running, 20))
			ended(20)
			b.write(intent(0, digest, pod.Stopped, 30))
			b.awaitState(0, pod.StateStopped, 30, "")
			b.write(intent(0, digest, pod.Running, 40))
			if r := b.awaitState(0, pod.StateFailed, 40, "it was started before and runs at most once"); !r.Hopeless {
				t.Errorf("%+v", r)
			}
			b.mustHaveRunOnce()
		})
	}
}

type deaf struct{ runtime.Runtime }

func (deaf) Start(context.Context, runtime.Spec) error { return errors.New("connection reset") }

// A pod that runs once is not started again if its start was saved, but its outcome is unknown.
func TestPodThatRunsOnceIsNotStartedAgainAfterAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	digest := b.upload(b.once("0"))
	b.cfg.Runtime = deaf{b.runtime}
	a := b.start()
	b.write(intent(0, digest, pod.Running, 10))
	spent := func(revision int64) {
		t.Helper()
		if r := b.awaitState(0, pod.StateFailed, revision, "it was started before and runs at most once"); !r.Hopeless {
			t.Errorf("%+v", r)
		}
		if procs := b.procs(0); len(procs) > 0 {
			t.Errorf("processes %+v", procs)
		}
	}
	spent(10)
	a.stop()
	b.cfg.Runtime = b.runtime
	b.start()
	b.write(intent(0, digest, pod.Running, 20))
	spent(20)
}

// refusal: an artifact differs from its manifest.
type refusal struct{ error }

func (refusal) Refused() bool { return true }

// A pod is hopeless at once if it can never be installed, or ends again and again, but not if the cause may be over
// soon.
func TestOnlyFailuresThatNeverEndAreHopeless(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start()
	fails := b.pod("exit 3", "1")
	lacks := b.sleeper("2")
	lacks.Launchables[0].Command = "bin/none"
	refused, away := b.pod("# refused", "3"), b.pod("# away", "4")
	b.artifacts.setError(
		refused.Launchables[0].Artifact, fmt.Errorf("fetch: %w", refusal{errors.New("another digest")}),
	)
	b.artifacts.setError(away.Launchables[0].Artifact, errors.New("connection refused"))
	program := b.sleeper("5")
	program.Launchables[0].Artifact = manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/nowhere/program"}
	for index, c := range []struct {
		m        manifest.Manifest
		state    pod.State
		hopeless bool
	}{
		{fails, pod.StateCrashLooping, true},
		{lacks, pod.StateFailed, true},
		{refused, pod.StateFailed, true},
		{away, pod.StateFailed, false},
		{program, pod.StateFailed, true},
	} {
		b.write(intent(index, b.upload(c.m), pod.Running, 10))
		began := time.Now()
		r := b.awaitReality(index, string(c.state), func(r pod.Reality) bool { return r.State == c.state })
		if r.Hopeless != c.hopeless || r.Message == "" {
			t.Errorf("after %s: %+v", time.Since(began), r)
		}
	}
}
