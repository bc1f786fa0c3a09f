package preparer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/proc"
)

// A pod that ends again and again is crash-looping, and not available, until it has run for ten seconds, also without
// min_ready and after a restart of the preparer.
func TestCrashLoopingPodIsNotAvailable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	m := b.pod(`[ -e "$POD_HOME/well" ] && exec sleep 1000000; exit 3`, "1")
	fast := field.Duration(manifest.MinBackoff)
	m.Launchables[0].Restart = &manifest.Restart{BackoffMin: &fast, BackoffMax: &fast}
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	r := b.awaitState(
		0, pod.StateCrashLooping, 10, "main: ended with exit status 3, again and again soon after its start",
	)
	if r.Available || r.LastExit == nil || r.LastExit.Code != 3 || r.Restarts < pod.CrashLoop-1 {
		t.Errorf("%+v", r)
	}
	a.stop()
	a = b.start()
	b.awaitServing()
	b.write(intent(1, digest, pod.Stopped, 5))
	b.awaitState(1, pod.StateStopped, 5, "") // after this report, all realities have been compared
	if again, _, err := b.reality(0); err != nil || again.State != pod.StateCrashLooping ||
		!again.Since.Equal(r.Since) {
		t.Errorf("after a restart: %+v, %v; before %+v", again, err, r)
	}
	if err := os.WriteFile(b.homeFile(0, "well"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.awaitReady(0, digest, 10)
	if ran := time.Since(b.procs(0)[0].StartedAt); ran < 10*time.Second {
		t.Errorf("available after %s", ran)
	}
	a.stop()
}

// After a restart of the preparer, the count of min_ready continues by the clock that counts since the machine's start.
func TestMinReadyGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.start()
	m := b.sleeper("1")
	const asked, gone = 30 * time.Second, 20 * time.Second
	minReady := field.Duration(asked)
	m.MinReady = &minReady
	b.eventually(func() error { // waits if the machine was started a moment ago
		now, err := proc.Now()
		if err == nil && now.Up <= gone {
			err = fmt.Errorf("the machine is up for %s", now.Up)
		}
		return err
	})
	digest := b.upload(m)
	b.write(intent(0, digest, pod.Running, 10))
	b.awaitState(0, pod.StateRunning, 10, "")
	file := b.inNode("pods", "rc1.main.0.json")
	var rec preparer.Record
	b.eventually(func() error {
		rec = preparer.Record{}
		if err := json.Unmarshal([]byte(b.text(file)), &rec); err != nil {
			return err
		}
		if rec.Counting == nil {
			return errors.New("the count is not saved")
		}
		return nil
	})
	pid := b.pid(0)
	a.stop()
	if r, _, err := b.reality(0); err != nil || r.Available {
		t.Errorf("before its time: %+v, %v", r, err)
	}
	rec.Counting.Since.Up -= gone
	data, err := json.Marshal(rec)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	restarted := time.Now()
	b.start()
	b.awaitReady(0, digest, 10)
	if took := time.Since(restarted); took >= asked {
		t.Errorf("available %s after the restart, as if the count had begun again", took)
	}
	b.mustKeepPID(0, pid)
}
