package confine_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

const (
	// applyArg isolates the test binary as the next argument's user, and executes /bin/cat of its status.
	applyArg = "apply-isolation"
	// greedArg, after the user, asks the kernel for better levels instead.
	greedArg = "ask-for-more"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == applyArg {
		uid, err := strconv.Atoi(os.Args[2])
		confine.ResetLevels()
		if err == nil {
			err = confine.Apply(
				&confine.Confinement{Isolation: confine.Isolation{UID: uid, GID: uid, NoNewPrivileges: true}}, nil)
		}
		if err == nil && len(os.Args) > 3 && os.Args[3] == greedArg {
			for what, err := range map[string]error{
				"nice -5":            unix.Setpriority(unix.PRIO_PROCESS, 0, -5),
				"oom_score_adj -500": os.WriteFile("/proc/self/oom_score_adj", []byte("-500"), 0),
				"realtime": unix.SchedSetAttr(0,
					&unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0),
			} {
				if err == nil {
					fmt.Println(what)
				}
			}
			os.Exit(0)
		}
		if err == nil {
			err = syscall.Exec("/bin/cat", []string{"cat", "/proc/self/status"}, nil)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// If a preparer is not root but has inheritable capabilities, its pods get none of them, with any user.
func TestPodsGetNoCapabilities(t *testing.T) {
	if os.Getuid() != 0 {
		capabilitiesOf(t, exec.CommandContext(t.Context(), "/proc/self/exe", applyArg, strconv.Itoa(os.Getuid())))
		return
	}
	const preparer, pod = 1_900_300_001, 1_900_300_002
	for _, uid := range []int{preparer, pod} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", applyArg, strconv.Itoa(uid))
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: preparer, Gid: preparer},
			AmbientCaps: []uintptr{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN},
		}
		capabilitiesOf(t, cmd)
	}
}

func capabilitiesOf(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sets := regexp.MustCompile(`(?m)^Cap(Inh|Prm|Eff|Amb):\s*([0-9a-f]+)$`).FindAllStringSubmatch(string(out), -1)
	if len(sets) != 4 {
		t.Fatalf("no capabilities in %s", out)
	}
	for _, set := range sets {
		if strings.Trim(set[2], "0") != "" {
			t.Errorf("%s: Cap%s is %s", strings.Join(cmd.Args[1:], " "), set[1], set[2])
		}
	}
}

// The kernel refuses a pod that asks for a higher priority, or asks not to be killed when memory runs out.
func TestPodsGetNoBetterStanding(t *testing.T) {
	t.Parallel()
	uid := os.Getuid()
	if uid == 0 {
		uid = 1_900_300_002
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", applyArg, strconv.Itoa(uid), greedArg)
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v; it got %q", err, out)
	}
}
