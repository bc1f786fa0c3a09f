package shim

import (
	"fmt"
	"path/filepath"
	"reflect"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// localSpec is a runtime.Spec with what it takes on this node, as the client sends it and the supervisor has it, on the disk too.
type localSpec struct {
	runtime.Process

	Isolation *confine.Confinement `json:"isolation,omitempty"` // nil: it runs as the supervisor does
}

// asked is what the preparer has asked for.
func (s localSpec) asked() runtime.Spec {
	wanted := runtime.Spec{Process: s.Process}
	if s.Isolation != nil {
		wanted.Isolation = &s.Isolation.Isolation
	}
	return wanted
}

func (s localSpec) validate() error {
	if err := s.Process.Validate(); err != nil {
		return err
	}
	if s.Isolation != nil {
		if err := s.Isolation.Validate(); err != nil {
			return fmt.Errorf("%w: %w", runtime.ErrInvalid, err)
		}
	}
	return nil
}

func (s localSpec) same(other localSpec) bool {
	return s.Process.Same(other.Process) && reflect.DeepEqual(s.Isolation, other.Isolation)
}

// cgroup is what the process and all its descendants live in; empty: none.
func (s localSpec) cgroup() string {
	if s.Isolation == nil {
		return ""
	}
	return s.Isolation.Cgroup
}

// memory is the limit of the process and all its descendants, in bytes; zero: none.
func (s localSpec) memory() int64 {
	if s.Isolation == nil {
		return 0
	}
	return s.Isolation.Memory
}

// confine says what an isolation takes on this node, for something that has this name below the node's cgroup.
func (c *Client) confine(wanted *runtime.Isolation, name string) *confine.Confinement {
	if wanted == nil {
		return nil
	}
	confined := &confine.Confinement{Isolation: *wanted}
	if c.cfg.Cgroup != "" {
		confined.Cgroup = filepath.Join(c.cfg.Cgroup, name)
	}
	return confined
}

// localStatus is a runtime.Status as the supervisor has it.
type localStatus struct {
	Spec localSpec `json:"spec"`
	runtime.State
}
