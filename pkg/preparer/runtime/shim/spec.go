package shim

import (
	"fmt"
	"path/filepath"
	"reflect"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/confine"
)

// localSpec is a runtime.Spec with the cgroup on this node. The client sends it, and the supervisor stores it.
type localSpec struct {
	runtime.Process

	// nil: the process runs as the supervisor's user, without limits
	Isolation *confine.Confinement `json:"isolation,omitempty"`
	// nil: the process runs without a container
	Container *runtime.Container `json:"container,omitempty"`
}

// asked returns the Spec that the preparer sent.
func (l localSpec) asked() runtime.Spec {
	wanted := runtime.Spec{Process: l.Process, Container: l.Container}
	if l.Isolation != nil {
		wanted.Isolation = &l.Isolation.Isolation
	}
	return wanted
}

// sharesLogWith returns an isolation with the group that may write to the log.
func (l localSpec) sharesLogWith() *runtime.Isolation {
	if l.Container != nil {
		return &runtime.Isolation{GID: l.Container.GID}
	}
	return l.asked().Isolation
}

func (l localSpec) validate() error {
	if err := l.Process.Validate(); err != nil {
		return err
	}
	if l.Isolation != nil {
		if err := l.Isolation.Validate(); err != nil {
			return fmt.Errorf("%w: %w", runtime.ErrInvalid, err)
		}
	}
	if l.Container == nil {
		return nil
	}
	if l.cgroup() == "" {
		return fmt.Errorf("%w: container: not valid without an isolation that has a cgroup; allowed: none",
			runtime.ErrInvalid)
	}
	return l.Container.Validate()
}

func (l localSpec) same(other localSpec) bool {
	return l.Process.Same(other.Process) && reflect.DeepEqual(l.Isolation, other.Isolation) &&
		reflect.DeepEqual(l.Container, other.Container)
}

func (l localSpec) cgroup() string {
	if l.Isolation == nil {
		return ""
	}
	return l.Isolation.Cgroup
}

// memory is in bytes; zero: no limit.
func (l localSpec) memory() int64 {
	if l.Isolation == nil {
		return 0
	}
	return l.Isolation.Memory
}

// name is the cgroup's name below the node's cgroup.
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

// localStatus is a runtime.Status in the supervisor's form.
type localStatus struct {
	Spec localSpec `json:"spec"`
	runtime.State
}
