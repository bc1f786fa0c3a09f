package claim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/preparer/loop"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestHostID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := hostID(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := hostID(dir); err != nil || again != first {
		t.Errorf("%q, %v; want %q again", again, err, first)
	}
	if other, err := hostID(t.TempDir()); err != nil || other == first {
		t.Errorf("another directory has the id %q, %v", other, err)
	}
	for _, garbage := range []string{"", "../x", first[:20]} {
		if err := os.WriteFile(filepath.Join(dir, hostFile), []byte(garbage), 0o600); err != nil {
			t.Fatal(err)
		}
		id, err := hostID(dir)
		if err != nil || !hostPattern.MatchString(id) || id == first {
			t.Errorf("after %q: %q, %v", garbage, id, err)
		}
	}
	if id, err := hostID(filepath.Join(dir, "missing")); err == nil {
		t.Errorf("id %q was kept nowhere", id)
	}
}

// One answer is not enough to be sure, nor are two that come too soon after each other, or with another in between.
func TestRivalIsConfirmed(t *testing.T) {
	t.Parallel()
	began := time.Now()
	var s rival
	for i, tt := range []struct {
		host string
		at   time.Duration
		sure bool
	}{
		{"", 0, false},
		{"", time.Hour, false},
		{"a", 0, false},
		{"a", 4, false},
		{"a", 5, true},
		{"a", 6, true},
		{"", 7, false},
		{"a", 100, false},
		{"b", 200, false},
		{"a", 300, false},
		{"a", 304, false},
		{"a", 305, true},
	} {
		if got := s.add(tt.host, began.Add(tt.at), 5); got != tt.sure {
			t.Errorf("answer %d, %q at %d: %v, want %v", i, tt.host, tt.at, got, tt.sure)
		}
	}
}

func TestNoteThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, nameFile), []byte(`{"node": "n", "lost"`), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := OpenName(dir, "n", false, nil); err != nil || n.note != (note{}) {
		t.Errorf("garbage: %+v, %v; want an empty note", n.note, err)
	}
	if err := os.Remove(filepath.Join(dir, nameFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, nameFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenName(dir, "n", false, nil); err == nil { // the note could have that the name was lost
		t.Error("a note that the disk does not give is taken for none")
	}
}

// The standing comes from Consul's last answer. Before the first answer, it comes from the note on the disk.
func TestStanding(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *Name {
		t.Helper()
		n, err := OpenName(dir, "n", false, loop.NewLogLimiter(nil))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	n := open()
	is := func(want Standing) {
		t.Helper()
		if got := n.Standing(); got != want {
			t.Errorf("it is %s, want %s", got, want)
		}
	}
	is(Unproven)
	n.Refuse(errors.New("another host has it"))
	is(Refused)
	n.Take()
	is(Held)
	n.Refuse(errors.New("another host has it"))
	is(Refused)
	n = open() // Saw was not called, so there is no note
	is(Unproven)
	n.Take()
	n.Saw(store.Rec[node.Node]{Value: node.Node{Name: "n", Incarnation: "i", Epoch: "e"}, Index: 1})
	is(Held)
	n = open()
	is(Former)
	n.Refuse(errors.New("another host has it"))
	is(Refused)
	other, err := OpenName(dir, "m", false, nil)
	if err != nil || other.Standing() != Unproven {
		t.Errorf("the directory of n makes it %s of m (%v)", other.Standing(), err)
	}
}
