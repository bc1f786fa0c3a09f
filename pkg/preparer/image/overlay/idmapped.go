package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/idmap"
)

// ErrNotIdmapped means that lower layers cannot be shown with other owners.
var ErrNotIdmapped = errors.New("lower layers cannot have other owners here; use Linux 5.19 or newer, and a data " +
	"directory on an ext4, xfs or tmpfs volume")

// probeOwner is far from the numbers of real users.
const probeOwner = 1_900_000_000

// ProbeIdmapped tries an overlay mount with a lower layer that has other owners there than on the disk. As Probe, it
// leaves no mount. Errors to test for: ErrNotIdmapped. Other errors are about the directory itself.
func ProbeIdmapped(dir string) error {
	return probe(dir, []string{"low", "shown", "upper", "work", "merged"}, []string{"low/kept"}, ErrNotIdmapped,
		tryIdmapped)
}

// tryIdmapped runs in a mount namespace of its own.
func tryIdmapped(base string) error {
	in := func(sub string) string { return filepath.Join(base, sub) }
	whole := []idmap.Range{{OnDisk: 0, Shown: probeOwner, Size: 65_536}}
	if err := idmap.Bind(in("low"), in("shown"), whole); err != nil {
		return err
	}
	layers := Layers{Lower: []string{in("shown")}, Upper: in("upper"), Work: in("work")}
	if err := Mount(in("merged"), layers); err != nil {
		return err
	}
	info, err := os.Lstat(in("merged/kept"))
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != probeOwner {
		return fmt.Errorf("a file of user 0 is shown as a file of %v; wanted %d", info.Sys(), probeOwner)
	}
	return nil
}
