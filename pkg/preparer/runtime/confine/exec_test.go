package confine_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// The error names the missing file: the program or its interpreter.
func TestExecError(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		content string
		err     syscall.Errno
		want    string
	}{
		"missing interpreter": {
			"#!/no/such/sh -e\n", syscall.ENOENT,
			`its #! line names "/no/such/sh", which is not on this node: no such file`,
		},
		"carriage return": {
			"#!/bin/sh\r\n", syscall.ENOENT,
			`its #! line names "/bin/sh\\r", which is not on this node`,
		},
		"blanks":           {"#! \t/no/such/sh", syscall.ENOENT, `names "/no/such/sh"`},
		"no program":       {"#!" + dir + "\n", syscall.EACCES, "which is not a program: permission denied"},
		"fine interpreter": {"#!/bin/sh\n", syscall.EACCES, "launch: permission denied"},
		"no script": {
			"echo\n", syscall.ENOEXEC,
			"exec format error: it is neither a program for this machine nor a script with a #! line",
		},
		"another error": {"#!/no/such/sh\n", syscall.E2BIG, "launch: argument list too long"},
	} {
		path := filepath.Join(dir, "launch")
		if err := os.WriteFile(path, []byte(tt.content), 0o755); err != nil {
			t.Fatal(err)
		}
		got := confine.ExecError(path, tt.err)
		if !strings.HasPrefix(got.Error(), "exec "+path+": ") || !strings.Contains(got.Error(), tt.want) ||
			!errors.Is(got, tt.err) {
			t.Errorf("%s: %v; want %s", name, got, tt.want)
		}
		if err := syscall.Exec(path, nil, nil); tt.err == syscall.ENOENT && !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s: the kernel says %v", name, err)
		}
	}
	if got := confine.ExecError("/no/such/program", syscall.ENOENT); got.Error() != "exec /no/such/program: no such "+
		"file or directory" {
		t.Errorf("no program: %v", got)
	}
}
