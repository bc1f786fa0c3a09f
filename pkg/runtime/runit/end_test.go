package runit_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/runtime/runit"
)

// A keeper that waits for its turn would become the next runsvdir once the present one is killed.
func TestKillAllEndsAKeeperThatIsOnItsWay(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec := n.idler(t, "idler")
	n.start(t, spec)
	n.awaitRun(t, spec)
	n.Close()
	lock, err := os.OpenFile(filepath.Join(n.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	waiting := exec.CommandContext(t.Context(), filepath.Join(n.Dir, "stub"), runit.StubArg, "keeper", n.Dir)
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- waiting.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := runit.KillAll(ctx, n.Dir); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("a keeper is left after everything was killed")
	}
	if left := n.supervisors(t, "runsvdir"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
