package confine

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// Constants that package syscall lacks (capset(2), prctl(2)).
const (
	capVersion3        = 0x20080522
	prSetKeepCaps      = 8
	prCapAmbient       = 47
	prCapAmbientClrAll = 4
)

// capHeader and capData are types of the kernel. A process has two values of capData.
type (
	capHeader struct {
		version uint32
		pid     int32
	}
	capData struct{ effective, permitted, inheritable uint32 }
)

// keepCapabilities removes from the calling thread all capabilities that are not in keep. A program that it executes
// gets none. The kernel drops capabilities only when root changes its user, so a preparer with capabilities but another
// user would pass them on.
func keepCapabilities(keep []int) error {
	header := capHeader{version: capVersion3}
	var has, data [2]capData
	if _, _, err := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&has[0])), 0); err != 0 {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for _, bit := range keep {
		kept := has[bit/32].permitted & (1 << (bit % 32))
		data[bit/32].effective |= kept
		data[bit/32].permitted |= kept
	}
	if _, _, err := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&data[0])), 0); err != 0 {
		return fmt.Errorf("keep the capabilities %v: %w", keep, err)
	}
	// A kernel before Linux 4.3 has no ambient capabilities.
	if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, prCapAmbient, prCapAmbientClrAll, 0, 0, 0, 0); err != 0 &&
		err != syscall.EINVAL {
		return fmt.Errorf("drop the ambient capabilities: %w", err)
	}
	return nil
}

// Become changes the user of the calling process, without a way back. The calling thread, to which the goroutine must
// be locked, keeps only the capabilities in keep. The process cannot get new ones.
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

// DropCapabilities removes all capabilities from the calling thread, to which the goroutine must be locked, unless its
// user is root.
func DropCapabilities() error {
	if os.Getuid() == 0 {
		return nil
	}
	return keepCapabilities(nil)
}
