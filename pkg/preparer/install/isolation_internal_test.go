package install

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/internal/account"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

func TestUserRangeChoose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.IntRange(nobody-5, nobody+5).Draw(t, "first")
		r := UserRange{First: first, Last: first + rapid.IntRange(0, 20).Draw(t, "size")}
		taken := map[int]bool{}
		free := 0
		for n := r.First; n <= r.Last; n++ {
			if r.contains(n) {
				free++
			}
		}
		for given := 0; ; given++ {
			name := rapid.StringN(1, 5, -1).Draw(t, "name")
			got, err := r.choose(name, taken)
			if given == free {
				if !errors.Is(err, errTaken) {
					t.Fatalf("the range is used up, and it gave %d, %v", got, err)
				}
				return
			}
			again, _ := r.choose(name, taken)
			if err != nil || taken[got] || got < r.First || got > r.Last || got == nobody || got == noNumber ||
				again != got {
				t.Fatalf("of %+v, where %v are taken, it gave %d and then %d, %v", r, taken, got, again, err)
			}
			taken[got] = true
		}
	})
}

func TestUsersNumber(t *testing.T) {
	r := UserRange{First: 5000, Last: 5002}
	u := newUsers()
	u.give("left", 5001)
	seen := map[int]bool{}
	for _, name := range []string{"a", "left", "b"} {
		n, err := u.number(r, name)
		again, _ := u.number(r, name)
		if err != nil || n != again || seen[n] || name == "left" && n != 5001 {
			t.Errorf("%s: %d, then %d, %v; others have %v", name, n, again, err, seen)
		}
		seen[n] = true
	}
	if n, err := u.number(r, "c"); !errors.Is(err, errTaken) {
		t.Errorf("a fourth of three: %d, %v", n, err)
	}
}

func TestNumberOf(t *testing.T) {
	r := UserRange{First: 5000, Last: 5999}
	with := func(iso *runtime.Isolation) []runtime.Status {
		return []runtime.Status{{}, {Spec: runtime.Spec{Isolation: iso}}}
	}
	for want, iso := range map[int]*runtime.Isolation{
		0: nil, 5001: {UID: 5001, GID: 5001}, 5002: {UID: 33, GID: 33, Groups: []int{7, 5002}},
	} {
		if got := numberOf(r, with(iso)); got != want {
			t.Errorf("%+v: %d, want %d", iso, got, want)
		}
	}
}

func TestIsolationOf(t *testing.T) {
	own := os.Getuid()
	accounts := func(name string) (account.Account, error) {
		switch name {
		case "web":
			return account.Account{UID: own + 33, GID: 34, Groups: []int{35}}, nil
		case "self":
			return account.Account{UID: own, GID: os.Getgid()}, nil
		}
		if name == "root" {
			return account.Account{}, nil
		}
		return account.Account{}, errors.New("no such account")
	}
	refusing := Isolation{NoUsers: "users: the directory is closed", Limits: true}
	users := Isolation{Users: UserRange{First: 5000, Last: 5999}}
	for name, tt := range map[string]struct {
		in     Isolation
		number int
		user   string
		want   *runtime.Isolation
		says   string
	}{
		"own number": {
			in: users, number: 5001,
			want: &runtime.Isolation{UID: 5001, GID: 5001, NoNewPrivileges: true},
		},
		"account": {
			in: users, number: 5001, user: "web",
			want: &runtime.Isolation{UID: own + 33, GID: 34, Groups: []int{35, 5001}, NoNewPrivileges: true},
		},
		"unknown account": {in: users, number: 5001, user: "wbe", says: "no such account"},
		"no number left":  {in: users, says: "5000 to 5999: all are taken"},
		"root": {
			in: users, number: 5001, user: "root",
			says: `asks for "root", and this node does not allow it; see --allow-root-pods`,
		},
		"root, allowed": {
			in: Isolation{Users: users.Users, AllowRoot: true}, number: 5001, user: "root",
			want: &runtime.Isolation{Groups: []int{5001}, NoNewPrivileges: true},
		},
		"refused": {
			in:   refusing,
			says: "starts none as root in place of one: users: the directory is closed; see --isolation",
		},
		"refused, with account": {in: refusing, user: "web", says: "gives pods no users of their own"},
		"refused, root":         {in: refusing, user: "root", says: "--allow-root-pods"},
		"refused, unknown":      {in: refusing, user: "wbe", says: "no such account"},
		"off":                   {},
		"off, same user":        {user: "self"},
		"off, another user":     {user: "web", says: `asks for "web"`},
		"only limits": {
			in:   Isolation{Limits: true},
			want: &runtime.Isolation{UID: own, GID: os.Getgid(), NoNewPrivileges: true},
		},
		"limits, other user": {in: Isolation{Limits: true}, user: "web", says: `asks for "web"`},
	} {
		got, err := tt.in.of(tt.number, &manifest.Launchable{User: tt.user}, accounts)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, tt.says)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestIsolationNamed(t *testing.T) {
	users := UserRange{First: 1, Last: 2}
	for want, in := range map[string]Isolation{
		"none": {AllowRoot: true}, "users": {Users: users}, "users,cgroup,tmp": {
			Users: users, Limits: true,
			Tmp: true,
		}, "tmp": {Tmp: true},
		"refused": {NoUsers: "users: why", Limits: true},
	} {
		if got := in.String(); got != want {
			t.Errorf("%+v is called %q, want %q", in, got, want)
		}
	}
}

// Each pod of an account has the account's groups and its own group, but not the group of another pod, although both
// share one lookup.
func TestGroupsOfTwoPods(t *testing.T) {
	found := account.Account{UID: 33, GID: 34, Groups: append(make([]int, 0, 8), 35, 36, 37)}
	accounts := func(string) (account.Account, error) { return found, nil }
	users := Isolation{Users: UserRange{First: 5000, Last: 5999}}
	var got [2]*runtime.Isolation
	for i := range got {
		var err error
		if got[i], err = users.of(5001+i, &manifest.Launchable{User: "web"}, accounts); err != nil {
			t.Fatal(err)
		}
	}
	for i, iso := range got {
		if want := []int{35, 36, 37, 5001 + i}; !slices.Equal(iso.Groups, want) {
			t.Errorf("pod %d has the groups %v, want %v", i, iso.Groups, want)
		}
	}
}

func TestLimit(t *testing.T) {
	r := manifest.Resources{CPU: 1, Memory: 2, PIDs: 3}
	iso := &runtime.Isolation{UID: 7}
	Isolation{}.limit(iso, r)
	if diff := cmp.Diff(&runtime.Isolation{UID: 7}, iso); diff != "" {
		t.Errorf("without limits:\n%s", diff)
	}
	Isolation{Limits: true}.limit(iso, r)
	if diff := cmp.Diff(&runtime.Isolation{UID: 7, CPU: 1, Memory: 2, PIDs: 3}, iso); diff != "" {
		t.Errorf("with limits:\n%s", diff)
	}
	unlimited := &runtime.Isolation{}
	Isolation{Limits: true}.limit(unlimited, manifest.Resources{})
	if diff := cmp.Diff(&runtime.Isolation{PIDs: manifest.DefaultPIDs}, unlimited); diff != "" {
		t.Errorf("of a launchable that asks for nothing:\n%s", diff)
	}
	Isolation{Limits: true}.limit(nil, r)
}

func TestLookUp(t *testing.T) {
	lookUp := (&Node{}).lookUp
	root, err := lookUp("root")
	if err != nil || root.UID != 0 || root.GID != 0 || slices.Contains(root.Groups, 0) {
		t.Errorf("root is %+v, %v", root, err)
	}
	if a, err := lookUp("no-such-account-here"); err == nil ||
		!strings.Contains(err.Error(), `"no-such-account-here"`) {
		t.Errorf("got %+v, %v; want an error that names the account", a, err)
	}
	byName, err := lookUp("daemon")
	if err != nil {
		t.Fatal(err)
	}
	if a, err := lookUp(strconv.Itoa(byName.UID)); err != nil || a.UID != byName.UID || a.GID != byName.GID {
		t.Errorf("by number %+v, %v; by name %+v", a, err, byName)
	}
	for _, name := range []string{"0", "4294967294"} {
		if a, err := lookUp(name); err == nil {
			t.Errorf("%s is %+v", name, a)
		}
	}
}

// If a directory's owner changes, so does everything in it, and nothing outside.
func TestOwnDirChangesHands(t *testing.T) {
	base := t.TempDir()
	p := &Node{}
	ownDir := func(dir string, owner *account.Account, takeOver bool) error {
		return p.ownDir(t.Context(), dir, owner, takeOver)
	}
	home, outside := filepath.Join(base, "homes", "p"), filepath.Join(base, "outside")
	self := &account.Account{UID: os.Getuid(), GID: os.Getgid()}
	if err := ownDir(home, self, false); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(home); err != nil || info.Mode().Perm() != 0o770 {
		t.Errorf("home %v, %v; want it open to the pod's group", info, err)
	}
	for path, content := range map[string]string{outside: "", filepath.Join(home, "file"): ""} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hard := filepath.Join(home, "deep", "hard")
	if err := errors.Join(os.Mkdir(filepath.Join(home, "deep"), 0o700),
		os.Symlink(outside, filepath.Join(home, "deep", "link")), os.Link(outside, hard)); err != nil {
		t.Fatal(err)
	}
	other := &account.Account{UID: 1_900_000_021, GID: 1_900_000_022}
	if os.Getuid() == 0 {
		theirs := &account.Account{UID: other.UID + 2, GID: other.GID}
		for _, path := range []string{
			home, filepath.Join(home, "file"), filepath.Join(home, "deep"),
			filepath.Join(home, "deep", "link"),
		} {
			if err := os.Lchown(path, theirs.UID, theirs.GID); err != nil {
				t.Fatal(err)
			}
		}
		if err := ownDir(home, other, false); err != nil {
			t.Fatal(err)
		}
		if uid, _, err := ownerOf(home); err != nil || uid != theirs.UID {
			t.Errorf("home was taken from the version that runs: it belongs to %d, %v", uid, err)
		}
	}
	err := ownDir(home, other, true)
	if os.Getuid() != 0 {
		if !errors.Is(err, os.ErrPermission) {
			t.Errorf("not root: %v, want a refusal", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]account.Account{
		home: *other, filepath.Join(home, "file"): *other, filepath.Join(home, "deep"): *other, filepath.Join(home,
			"deep", "link"): *other,
		outside: *self, filepath.Dir(home): *self,
	}
	for path, owner := range want {
		if uid, gid, err := ownerOf(path); err != nil || uid != owner.UID || gid != owner.GID {
			t.Errorf("%s belongs to %d:%d, %v; want %d:%d", path, uid, gid, err, owner.UID, owner.GID)
		}
	}
	if err := ownDir(outside, other, true); err == nil {
		t.Error("a file was taken for a home")
	}
}
