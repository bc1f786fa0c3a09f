package stub_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/stub"
)

// What the package depends on is initialised in every stub, before it becomes its program.
func TestImportsLittle(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	allowed := strings.Fields("bytes cmp encoding encoding/base64 encoding/json errors fmt io io/fs iter math math/bits os path reflect runtime" +
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

// A process that is started as a stub is one before the packages that come later by path are initialised: it never gets to
// main. That it becomes its program is tested with the supervisor.
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
