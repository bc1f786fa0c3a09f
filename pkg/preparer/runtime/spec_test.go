package runtime

import (
	"strings"
	"testing"
)

func TestIsolationValidate(t *testing.T) {
	good := Isolation{UID: 1, GID: 1, Tmp: "/t", CPU: 1, Memory: 1, PIDs: 1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Isolation){
		"user or group -1 ":         func(i *Isolation) { i.UID = -1 },
		"user or group 4294967295 ": func(i *Isolation) { i.GID = 1<<32 - 1 },
		"user or group -2 ":         func(i *Isolation) { i.Groups = []int{1, -2} },
		`directory "tmp" is`:        func(i *Isolation) { i.Tmp = "tmp" },
		"cpu limit -1 is not valid": func(i *Isolation) { i.CPU = -1 },
	} {
		iso := good
		change(&iso)
		if err := iso.Validate(); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("got %v, want an error with %q and what is allowed", err, want)
		}
	}
}

func TestProcessSame(t *testing.T) {
	a := Process{ID: "p", Command: []string{"/x"}, Env: nil}
	b := Process{ID: "p", Command: []string{"/x"}, Env: []string{}}
	if !a.Same(b) {
		t.Error("an empty list differs from a missing one")
	}
	for _, change := range []func(*Process){
		func(p *Process) { p.Revision++ }, func(p *Process) { p.Command = []string{"/y"} },
		func(p *Process) { p.Env = []string{"A=1"} }, func(p *Process) { p.Pod.Index++ },
		func(p *Process) { p.Restart.Policy = Never },
	} {
		c := a
		change(&c)
		if a.Same(c) {
			t.Errorf("%+v equals %+v", a, c)
		}
	}
}
