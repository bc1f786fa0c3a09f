package account_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/internal/account"
)

// Lookup finds the same accounts as the machine's own tools, by name and by number.
func TestLookup(t *testing.T) {
	root, err := account.Lookup(t.Context(), "root")
	if err != nil || root.Name != "root" || root.UID != 0 || root.GID != 0 || slices.Contains(root.Groups, 0) {
		t.Errorf("root is %+v, %v", root, err)
	}
	for _, name := range []string{"root", "daemon", "nobody"} {
		a, err := account.Lookup(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("id", "-G", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		got := []string{strconv.Itoa(a.GID)}
		for _, g := range a.Groups {
			got = append(got, strconv.Itoa(g))
		}
		if diff := cmp.Diff(strings.Fields(string(out)), got); diff != "" {
			t.Errorf("groups of %s:\n%s", name, diff)
		}
		byNumber, err := account.Lookup(t.Context(), strconv.Itoa(a.UID))
		if diff := cmp.Diff(a, byNumber); err != nil || diff != "" {
			t.Errorf("%s by number: %v\n%s", name, err, diff)
		}
	}
	for _, name := range []string{"no-such-account-here", "4294967294", "", "-s", "--help"} {
		var unknown user.UnknownUserError
		if a, err := account.Lookup(t.Context(), name); !errors.As(err, &unknown) {
			t.Errorf("%q is %+v, %v; want it unknown", name, a, err)
		}
	}
	if name := account.Name(t.Context(), os.Getuid()); name == strconv.Itoa(os.Getuid()) {
		t.Errorf("the user that runs this is called %s", name)
	}
	if name := account.Name(t.Context(), 4294967294); name != "4294967294" {
		t.Errorf("a user without a name is called %s", name)
	}
}

// tools puts scripts in place of the machine's tools. The scripts act as a directory service with accounts that no file
// of the machine has.
func tools(t *testing.T, scripts map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	return dir
}

func TestDirectoryService(t *testing.T) {
	calls := filepath.Join(t.TempDir(), "calls")
	tools(t, map[string]string{
		"getent": `echo >> ` + calls + `
case "$1 $2" in
"passwd ada"|"passwd 70001") echo 'ada:*:70001:70002:Ada,,,:/home/ada:/bin/sh' ;;
"passwd three") echo 'three:*:3:3::/:/bin/sh' ;;
"passwd odd") echo 'nothing' ;;
"passwd big") echo 'big:*:many:1::/:/bin/sh' ;;
"passwd down") echo 'no server answers' >&2; exit 1 ;;
*) exit 2 ;;
esac`,
		"id": `case "$2" in ada) echo 70002 70003 70004 ;; three) echo 3 4 5 6 ;; esac`,
	})
	want := account.Account{Name: "ada", UID: 70001, GID: 70002, Groups: []int{70003, 70004}}
	for _, name := range []string{"ada", "70001"} {
		got, err := account.Lookup(t.Context(), name)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	for name, part := range map[string]string{"odd": "nothing", "big": "many", "down": "no server answers"} {
		var unknown user.UnknownUserError
		if a, err := account.Lookup(t.Context(), name); err == nil || errors.As(err, &unknown) ||
			!strings.Contains(err.Error(), part) {
			t.Errorf("%s is %+v, %v; want an error with %q", name, a, err, part)
		}
	}
	// If one caller appends to the groups, other callers do not see it.
	var shared account.Directory
	var groups [2][]int
	for i := range groups {
		a, err := shared.Lookup("three")
		if err != nil || len(a.Groups) != 3 {
			t.Fatalf("%+v, %v", a, err)
		}
		groups[i] = append(a.Groups, i)
	}
	if groups[0][3] != 0 || groups[1][3] != 1 {
		t.Errorf("groups of two callers: %v", groups)
	}
	// A found account is looked up only once. An account that was not found is looked up again.
	if err := os.Remove(calls); err != nil {
		t.Fatal(err)
	}
	var d account.Directory
	for range 5 {
		if got, err := d.Lookup("ada"); err != nil || got.UID != 70001 {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := d.Lookup("nobody-here"); err == nil {
			t.Error("found an account that is not there")
		}
	}
	if lines, err := os.ReadFile(calls); err != nil || len(lines) != 1+5 {
		t.Errorf("%d calls, %v; want one for the account and five for the other", len(lines), err)
	}
}

// If the machine does not have these tools, Lookup uses its files.
func TestWithoutTools(t *testing.T) {
	tools(t, nil)
	a, err := account.Lookup(t.Context(), "root")
	if err != nil || a.UID != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	var unknown user.UnknownUserError
	for _, name := range []string{"no-such-account-here", "4294967294"} {
		if a, err := account.Lookup(t.Context(), name); !errors.As(err, &unknown) {
			t.Errorf("%s is %+v, %v; want it unknown", name, a, err)
		}
	}
}

// Lookup waits for a directory service only until its context ends.
func TestSilentDirectoryService(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	tools(t, map[string]string{"getent": "exec " + sleep + " 1000"})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := account.Lookup(ctx, "ada"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that time is over", err)
	}
}
