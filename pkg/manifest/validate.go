package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Limits on one manifest. Each node that runs it reads it, and transactions contain it.
const (
	MaxLaunchables = field.MaxLaunchables
	MaxPorts       = field.MaxPorts
	MaxVolumes     = 16
	MaxTmpfs       = 16
	MaxArgs        = 128
	MaxEnv         = 128
	MaxLabels      = field.MaxLabels    // in one set of labels
	MaxTextBytes   = field.MaxTextBytes // one argument, environment value, path or URL
	MaxBytes       = 65_536             // the whole manifest in canonical JSON
	MaxCPU         = field.MaxCPU       // thousandths of a core, one process
	MaxMemory      = field.MaxMemory    // bytes, one process
	MaxPIDs        = 4_194_304          // Linux's limit (pid_max)
	MaxThreshold   = 100                // checks in a row
)

// Bounds on lengths of time. Restarts after a shorter time would be a busy loop. After a longer time, people would
// think that the pod is gone.
const (
	MinBackoff     = 100 * time.Millisecond
	MaxBackoff     = time.Hour
	MaxHookTimeout = time.Hour
	MaxMinReady    = 24 * time.Hour

	MinRestartAfter = 10 * time.Second
	MaxRestartAfter = 24 * time.Hour
)

// MinHealthInterval is a Consul agent's shortest interval. The agent replaces a shorter one without an error.
const MinHealthInterval = time.Second

// Validate returns all mistakes, with paths.
func (m *Manifest) Validate() field.Errors {
	var errs field.Errors
	if m.Version != Version {
		errs.Add("version", m.Version, fmt.Sprint(Version))
	}
	errs.CheckName("id", m.ID)
	checkServiceName(&errs, "id", m.ID)
	checkCount(&errs, "launchables", len(m.Launchables), 1, MaxLaunchables)
	names := map[string]bool{}
	for i := range m.Launchables {
		path := fmt.Sprintf("launchables[%d]", i)
		errs.Nest(path, m.Launchables[i].validate())
		checkUnique(&errs, path+".name", m.Launchables[i].Name, names)
	}
	errs.Nest("config", m.Config.validate())
	m.validatePorts(&errs)
	if m.Service != nil {
		errs.Nest("service", m.Service.validate(m))
	}
	m.checkServiceNames(&errs)
	m.validateMinReady(&errs)
	if m.Health != nil {
		errs.Nest("health", m.Health.validate(m))
	}
	if m.Hooks != nil {
		errs.Nest("hooks", m.Hooks.validate(m))
	}
	if m.Disconnect != nil {
		checkPositive(&errs, "disconnect.stop_after", m.Disconnect.StopAfter, 0)
	}
	m.validateVolumes(&errs)
	m.validateVariables(&errs)
	ValidateLabels(&errs, "labels", m.Labels)
	if canonical, err := m.Canonical(); err == nil && len(canonical) > MaxBytes {
		errs.Add("", field.Text(fmt.Sprintf("%d bytes of canonical JSON", len(canonical))),
			fmt.Sprintf("at most %d bytes", MaxBytes))
	}
	return errs
}

func (m *Manifest) validatePorts(errs *field.Errors) {
	const allowed = "a TCP port from 1 to 65535, or dynamic: true in place of it"
	checkCount(errs, "ports", len(m.Ports), 0, MaxPorts)
	names, numbers := map[string]bool{}, map[string]bool{}
	for i, p := range m.Ports {
		path := fmt.Sprintf("ports[%d]", i)
		errs.CheckName(path+".name", p.Name)
		checkUnique(errs, path+".name", p.Name, names)
		switch {
		case p.Dynamic && p.Port != 0:
			errs.Add(path, field.Text("port together with dynamic"), "exactly one of port and dynamic")
		case p.Dynamic:
		case p.Port == 0:
			errs.Missing(path+".port", allowed)
		case p.Port < 1 || p.Port > field.MaxPort:
			errs.Add(path+".port", p.Port, allowed)
		default:
			checkUnique(errs, path+".port", fmt.Sprint(p.Port), numbers)
		}
	}
}

func (m *Manifest) validateMinReady(errs *field.Errors) {
	switch {
	case m.MinReady == nil:
	case time.Duration(*m.MinReady) > MaxMinReady:
		errs.Add("min_ready", time.Duration(*m.MinReady).String(),
			fmt.Sprintf("a length of time, at most %q; 0s: at once", MaxMinReady))
	case m.Health != nil && m.Health.MinReady != nil:
		errs.Add("health.min_ready", field.Text("min_ready together with health.min_ready"),
			"min_ready, which is the pod's, alone")
	}
}

func (m *Manifest) validateVolumes(errs *field.Errors) {
	checkCount(errs, "volumes", len(m.Volumes), 0, MaxVolumes)
	names := map[string]bool{}
	for i, v := range m.Volumes {
		path := fmt.Sprintf("volumes[%d].name", i)
		errs.CheckName(path, v.Name)
		checkUnique(errs, path, v.Name, names)
	}
	if m.HasImage() {
		m.validateMounts(errs)
		return
	}
	const why = "no launchable of this pod is an image"
	for i, v := range m.Volumes {
		checkNone(errs, fmt.Sprintf("volumes[%d].path", i), v.Path, why)
		if v.ReadOnly {
			errs.Add(fmt.Sprintf("volumes[%d].read_only", i), true, "false: "+why)
		}
	}
}

// ValidateLabels checks the number of labels, and Kubernetes' syntax.
func ValidateLabels(errs *field.Errors, path string, set map[string]string) {
	checkCount(errs, path, len(set), 0, MaxLabels)
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if !field.IsLabel(key, set[key]) {
			errs.Add(path+"."+key, key+"="+set[key], field.LabelAllowed)
		}
	}
}

func checkCount(errs *field.Errors, path string, n, least, most int) {
	switch {
	case n == 0 && least > 0:
		errs.Missing(path, fmt.Sprintf("%d to %d entries", least, most))
	case n > most:
		errs.Add(path, field.Text(fmt.Sprintf("%d entries", n)), fmt.Sprintf("%d to %d entries", least, most))
	}
}

// checkUnique accepts empty values, which another check refuses.
func checkUnique(errs *field.Errors, path, value string, seen map[string]bool) {
	if value != "" && seen[value] {
		errs.Add(path, value, "a value that no other entry has")
	}
	seen[value] = true
}

func checkText(errs *field.Errors, path, value string) {
	if len(value) > MaxTextBytes || strings.ContainsRune(value, 0) {
		errs.Add(path, value, fmt.Sprintf("at most %d bytes without a zero byte", MaxTextBytes))
	}
}

// checkPositive accepts nil, the default. most zero: no upper bound.
func checkPositive(errs *field.Errors, path string, d *field.Duration, most time.Duration) {
	switch {
	case d == nil:
	case *d == 0 && most == 0:
		errs.Add(path, "0s", "a length of time greater than zero, such as \"30s\"")
	case most > 0 && (*d == 0 || time.Duration(*d) > most):
		errs.Add(path, time.Duration(*d).String(), fmt.Sprintf("a length of time greater than zero, at most %q", most))
	}
}

func checkRange[N ~int64](errs *field.Errors, path, what string, n, most N) {
	if n < 0 || n > most {
		errs.Add(path, n, fmt.Sprintf("%s, from 0 to %d", what, most))
	}
}
