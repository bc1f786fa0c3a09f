package stub_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
)

// Every stub initialises this package's imports, so they must be few.
func TestImportsLittle(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := strings.Fields("bytes cmp encoding encoding/base64 encoding/json errors fmt io io/fs iter math " +
		"math/bits os path reflect runtime" +
		" slices strconv strings sync sync/atomic syscall time unicode unicode/utf16 unicode/utf8 unsafe" +
		" github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub")
	deps := strings.Fields(string(out))
	for _, dep := range deps {
		if !slices.Contains(strings.Split(dep, "/"), "internal") && !slices.Contains(allowed, dep) {
			t.Errorf("a stub imports %s; measure what that does to every start before it is allowed here", dep)
		}
	}
	if !slices.Contains(deps, allowed[len(allowed)-1]) {
		t.Errorf("the list is not about the stub: %s", out)
	}
}

// A stub works before packages with later import paths are initialised, and never reaches main.
func TestIsAStubBeforeAllElse(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nothing.Close() }()
	cmd := exec.CommandContext(t.Context(), exe, stub.Arg)
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	cmd.ExtraFiles = []*os.File{nothing}
	out, err := cmd.CombinedOutput()
	if err == nil || err.Error() != "exit status 1" {
		t.Errorf("a stub without an order: %v, want exit status 1", err)
	}
	if !strings.Contains(string(out), "init encoding/json ") {
		t.Errorf("nothing is said about initialisation:\n%s", out)
	}
	for _, late := range []string{"net", "os/exec", "regexp", "testing"} {
		if strings.Contains(string(out), "init "+late+" ") {
			t.Errorf("%s is initialised before the stub runs", late)
		}
	}
}

// A pod's process can stop a stub. If the start is no longer wanted, the supervisor waits a second for the stub, also
// while it writes an order that the pipe does not hold.
func TestReleaseGivesUpWhenTheStartIsUnwanted(t *testing.T) {
	t.Parallel()
	nothing, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nothing.Close() }()
	for name, size := range map[string]int{"a short order": 10, "a long order": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := stub.Start([3]*os.File{nothing, nothing, nothing}, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				s.Close()
				_ = syscall.Kill(s.PID, syscall.SIGKILL)
				_, _ = syscall.Wait4(s.PID, nil, 0, nil)
			}()
			if err := syscall.Kill(s.PID, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			unwanted := make(chan struct{})
			close(unwanted)
			began := time.Now()
			err = s.Release(stub.Order{Command: []string{"/bin/true", strings.Repeat("x", size)}}, unwanted)
			if took := time.Since(began); err == nil || took > stub.Timeout/2 {
				t.Errorf("Release returned %v after %v, want an error after about a second", err, took)
			}
		})
	}
}
