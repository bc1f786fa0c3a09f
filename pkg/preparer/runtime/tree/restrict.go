package tree

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

const niceness = 19

// restrict must run before the process reads anything of the tree, and the process must not continue after an error.
func restrict(o order) error {
	runtime.LockOSThread() // never unlocked, because capabilities belong to a thread
	seconds := uint64((o.Limit + killWait + time.Second) / time.Second)
	for _, limit := range []struct {
		what int
		most uint64
	}{{unix.RLIMIT_CORE, 0}, {unix.RLIMIT_FSIZE, 0}, {unix.RLIMIT_CPU, seconds}, {unix.RLIMIT_NOFILE, maxDepth + 64}} {
		if err := unix.Setrlimit(limit.what, &unix.Rlimit{Cur: limit.most, Max: limit.most}); err != nil {
			return fmt.Errorf("limit resource %d to %d: %w", limit.what, limit.most, err)
		}
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, niceness); err != nil {
		return fmt.Errorf("give way to others: %w", err)
	}
	var keep []int
	switch {
	case o.Op == opGive:
		keep = []int{unix.CAP_CHOWN, unix.CAP_DAC_READ_SEARCH}
	case o.As.UID == 0: // files of root, for example from a hook of the node
		keep = []int{unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER}
	}
	if err := confine.Become(o.As.UID, o.As.GID, keep); err != nil {
		return err
	}
	if os.Getuid() != o.As.UID || os.Geteuid() != o.As.UID {
		return fmt.Errorf("it runs as user %d: %w", os.Geteuid(), unix.EPERM)
	}
	return nil
}
