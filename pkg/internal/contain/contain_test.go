package contain_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/contain"
)

// Do returns a panic as an error that names its place. Is finds it even if the error is wrapped or joined. Other errors
// are not changed.
func TestDo(t *testing.T) {
	var none []int
	err := fmt.Errorf("look: %w", contain.Do(func() error { return fmt.Errorf("never %d", none[len(none)]) }))
	p := contain.Is(errors.Join(errors.New("other"), err))
	if p == nil || !strings.Contains(p.Stack, "TestDo") || !strings.Contains(err.Error(), "index out of range") ||
		!strings.Contains(err.Error(), "contain/contain_test.go:") {
		t.Errorf("%v, %+v", err, p)
	}
	if err := contain.Do(func() error { panic("by hand") }); !strings.Contains(err.Error(),
		"by hand, at internal/contain/contain_test.go:") {
		t.Error(err)
	}
	if err := contain.Do(func() error { return os.ErrExist }); !errors.Is(err, os.ErrExist) || contain.Is(err) != nil {
		t.Error(err)
	}
}

// If work that several looks share panics, the process ends, although the look that does the work is contained.
func TestFatal(t *testing.T) {
	if os.Getenv("CONTAIN_FATAL") != "" {
		err := contain.Do(func() error {
			defer contain.Fatal()
			panic("shared")
		})
		t.Log("contained:", err)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFatal$")
	cmd.Env = append(os.Environ(), "CONTAIN_FATAL=1")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "panic: shared") ||
		!strings.Contains(string(out), "contain_test.go") {
		t.Errorf("%v: %s", err, out)
	}
}
