package shim_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// On a full disk, a process that ends is started again, and one that is to stop stops.
func TestFullDisk(t *testing.T) {
	disktest.Run(t, 4<<20, func(t *testing.T, disk string) {
		t.Setenv("TMPDIR", disk)
		n := newNode(t)
		if err := n.Start(t.Context(), n.idler("a")); err != nil {
			t.Fatal(err)
		}
		first := n.await(t, "a", "running", func(st runtime.Status) bool { return st.Phase == runtime.Running })
		consultest.Eventually(t, Timeout, func() error {
			_, err := os.Stat(filepath.Join(n.Dir, "reserve", "63"))
			return err
		})
		disktest.Fill(t, disk)
		if err := unix.Kill(first.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.await(t, "a", "running again", func(st runtime.Status) bool { return st.Phase == runtime.Running && st.PID != first.PID })
		disktest.Fill(t, disk)
		if err := n.Stop(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		n.await(t, "a", "stopped", func(st runtime.Status) bool { return st.Phase == runtime.Stopped })
	})
}
