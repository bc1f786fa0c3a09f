package runtime

import (
	"encoding/json"
	"errors"
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

func TestValidateContainer(t *testing.T) {
	t.Parallel()
	const config = `{"root": {"path": "/data/c/rootfs"}}`
	valid := func() *Container {
		return &Container{
			Config: json.RawMessage(config), Dir: "/data/c", Layers: []string{"/layers/a"},
			IDs: &IDs{First: 300_000, Size: 65_536}, UID: 300_033, GID: 300_033, Scratch: 2,
		}
	}
	if err := valid().Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Container){
		"container.config: ":                  func(c *Container) { c.Config = json.RawMessage("[]") },
		"container.config: \"3":               func(c *Container) { c.Config = make([]byte, 3<<20+1) },
		"container.config.root.path: ":        func(c *Container) { c.Dir = "/data/d" },
		"container.dir: \"data\"":             func(c *Container) { c.Dir = "data" },
		"container.dir: \"/\"":                func(c *Container) { c.Dir = "/" },
		"container.layers: \"0 layers\"":      func(c *Container) { c.Layers = nil },
		"container.layers: \"257 layers\"":    func(c *Container) { c.Layers = make([]string, 257) },
		"container.layers[1]: \"/a/../b\"":    func(c *Container) { c.Layers = append(c.Layers, "/a/../b") },
		"container.ids: \"0 numbers from 1\"": func(c *Container) { c.IDs = &IDs{First: 1} },
		"container.ids: \"9 numbers":          func(c *Container) { c.IDs = &IDs{First: 1<<32 - 9, Size: 9} },
		"container.uid: \"-1\"":               func(c *Container) { c.UID = -1 },
		"container.gid: \"4294967295\"":       func(c *Container) { c.GID = 1<<32 - 1 },
		"container.scratch: \"65\"":           func(c *Container) { c.Scratch = 65 },
	} {
		c := valid()
		change(c)
		err := c.Validate()
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("%v, want an error with %q and what is allowed", err, want)
		}
	}
}
