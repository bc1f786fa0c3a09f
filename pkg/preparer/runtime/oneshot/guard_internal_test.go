package oneshot

import (
	"os/exec"
	"testing"
	"time"
)

// While a process does not die, the guard looks less and less often, until it finds a new process.
func TestNextGap(t *testing.T) {
	gap, waited, rounds := killGap, time.Duration(0), 0
	for ; waited < time.Minute; rounds++ {
		gap = nextGap(gap, false)
		waited += gap
	}
	if rounds > 80 {
		t.Errorf("%d looks at the table of processes in a minute", rounds)
	}
	if gap = nextGap(gap, true); gap != killGap {
		t.Errorf("after something new was found the next look is after %s", gap)
	}
}

// killRound reports a process as new once, even as a zombie.
func TestKillRoundKnowsWhatItHasKilled(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := map[int]uint64{}
	if !killRound(killed) {
		t.Error("a process was not found")
	}
	if killRound(killed) {
		t.Error("a process that was killed was taken for a new one")
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if killRound(killed) {
		t.Error("a process that is gone was found")
	}
}
