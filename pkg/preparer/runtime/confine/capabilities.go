package confine

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// What package syscall lacks; the same on all architectures (capset(2), prctl(2)).
const (
	capVersion3        = 0x20080522
	prSetKeepCaps      = 8
	prCapAmbient       = 47
	prCapAmbientClrAll = 4
)

// capHeader and capData are the kernel's; a process has two of the latter.
type (
	capHeader struct {
		version uint32
		pid     int32
	}
	capData struct{ effective, permitted, inheritable uint32 }
)

// keepCapabilities takes all capabilities from the calling thread but these, of which it need not have all, and leaves nothing for what it executes. A
// preparer that runs as another user than root may have been given some, which a change between two such users would keep.
func keepCapabilities(keep []int) error {
	header := capHeader{version: capVersion3}
	var has, data [2]capData
	if _, _, err := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&has[0])), 0); err != 0 {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for _, bit := range keep {
		kept := has[bit/32].permitted & (1 << (bit % 32))
		data[bit/32].effective |= kept
		data[bit/32].permitted |= kept
	}
	if _, _, err := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); err != 0 {
		return fmt.Errorf("keep the capabilities %v: %w", keep, err)
	}
	// A kernel before Linux 4.3 has no ambient ones.
	if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, prCapAmbient, prCapAmbientClrAll, 0, 0, 0, 0); err != 0 && err != syscall.EINVAL {
		return fmt.Errorf("drop the ambient capabilities: %w", err)
	}
	return nil
}

// Become makes the calling process a user for good, with no other capabilities on the calling thread than these, and with no
// way to new ones. The calling goroutine is locked to its thread.
func Become(uid, gid int, keep []int) error {
	if len(keep) > 0 {
		if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetKeepCaps, 1, 0, 0, 0, 0); err != 0 {
			return fmt.Errorf("keep the capabilities %v: %w", keep, err)
		}
	}
	iso := Isolation{UID: uid, GID: gid, NoNewPrivileges: true}
	if err := become(iso, nil); err != nil {
		return err
	}
	if err := keepCapabilities(keep); err != nil {
		return err
	}
	return renouncePrivileges(iso)
}

// DropCapabilities takes from the calling thread what its user would not have by itself, and leaves root what it has. The
// calling goroutine must be locked to its thread.
func DropCapabilities() error {
	if os.Getuid() == 0 {
		return nil
	}
	return keepCapabilities(nil)
}
