package manifest

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rcfarm/rcfarm/pkg/field"
)

func (h *Health) validate(m *Manifest) field.Errors {
	var errs field.Errors
	h.validateKind(&errs)
	if h.HTTP != nil {
		m.checkPort(&errs, "http.port", h.HTTP.Port)
		h.HTTP.validatePath(&errs)
	}
	if h.TCP != nil {
		m.checkPort(&errs, "tcp.port", h.TCP.Port)
	}
	if h.Script != nil {
		errs.Nest("script", m.checkProgram(h.Script.Launchable, h.Script.Path, h.Script.Args))
	}
	if h.Interval != nil && time.Duration(*h.Interval) < MinHealthInterval {
		errs.Add("interval", time.Duration(*h.Interval).String(), "a length of time of 1s or more, such as \"2s\"")
	}
	if h.Timeout != nil && *h.Timeout == 0 {
		errs.Add("timeout", "0s", "a length of time greater than zero, such as \"2s\"")
	}
	h.validateRestartAfter(&errs, m)
	checkRange(&errs, "success_threshold", "passes in a row", int64(h.SuccessThreshold), MaxThreshold)
	checkRange(&errs, "failure_threshold", "failures in a row", int64(h.FailureThreshold), MaxThreshold)
	return errs
}

func (h *Health) validateRestartAfter(errs *field.Errors, m *Manifest) {
	if h.RestartAfter == nil {
		return
	}
	const path = "restart_after"
	after, passes := h.RestartAfter.Or(0), h.PassesWithin()
	if after < MinRestartAfter || after > MaxRestartAfter || after < passes {
		errs.Add(path, after.String(), fmt.Sprintf(
			"a length of time from %q to %q, and at least success_threshold times interval and once timeout, which "+
				"is %q",
			MinRestartAfter, MaxRestartAfter, passes))
	}
	for i := range m.Launchables {
		if r := m.Launchables[i].Restart; r != nil && r.Policy == RestartNever {
			errs.Add(path,
				field.Text(fmt.Sprintf("restart_after together with launchables[%d].restart.policy never",
					i)), "one of them")
		}
	}
}

func (m *Manifest) checkPort(errs *field.Errors, path, port string) {
	ports := m.PortMap()
	allowed := "the name of one of the pod's ports: " +
		orNone(slices.Sorted(maps.Keys(ports)), "(the pod names no ports)")
	if port == "" {
		errs.Missing(path, allowed)
	} else if _, ok := ports[port]; !ok {
		errs.Add(path, port, allowed)
	}
}

func (h *Health) validateKind(errs *field.Errors) {
	const oneOf = "exactly one of http, tcp and script"
	var kinds []string
	for _, kind := range []struct {
		name  string
		given bool
	}{{"http", h.HTTP != nil}, {"tcp", h.TCP != nil}, {"script", h.Script != nil}} {
		if kind.given {
			kinds = append(kinds, kind.name)
		}
	}
	switch len(kinds) {
	case 0:
		errs.Missing("", oneOf)
	case 1:
	default:
		errs.Add("", field.Text(strings.Join(kinds, " together with ")), oneOf)
	}
}

// validatePath refuses a path that would be another one after http://host:port.
func (h *HTTPCheck) validatePath(errs *field.Errors) {
	const allowed = "a path that starts with '/', without spaces, '#' or '..' segments"
	path, _, _ := strings.Cut(h.Path, "?")
	odd := func(r rune) bool { return r == '#' || unicode.IsSpace(r) || !unicode.IsPrint(r) }
	switch _, err := url.ParseRequestURI(h.Path); {
	case h.Path == "":
		errs.Missing("http.path", allowed)
	case err != nil, !strings.HasPrefix(path, "/"), len(h.Path) > MaxTextBytes,
		strings.ContainsFunc(h.Path, odd), slices.Contains(strings.Split(path, "/"), ".."):
		errs.Add("http.path", h.Path, allowed)
	}
}

// Each calls f for every hook that is set, in the order of a pod's life.
func (h *Hooks) Each(f func(name string, hook *Hook)) {
	if h == nil {
		return
	}
	for _, hook := range []struct {
		name string
		hook *Hook
	}{
		{"before_install", h.BeforeInstall},
		{"after_install", h.AfterInstall},
		{"before_launch", h.BeforeLaunch},
		{"after_launch", h.AfterLaunch},
		{"before_stop", h.BeforeStop},
		{"after_stop", h.AfterStop},
	} {
		if hook.hook != nil {
			f(hook.name, hook.hook)
		}
	}
}

func (h *Hooks) validate(m *Manifest) field.Errors {
	var errs field.Errors
	h.Each(func(name string, hook *Hook) {
		errs.Nest(name, m.checkProgram(hook.Launchable, hook.Path, hook.Args))
		checkPositive(&errs, name+".timeout", hook.Timeout, MaxHookTimeout)
	})
	return errs
}

// LaunchableOf returns the launchable that a hook or a health script names, by default the first; nil: none.
func (m *Manifest) LaunchableOf(name string) *Launchable {
	return field.Find(m.Launchables, func(l *Launchable) bool { return name == "" || l.Name == name })
}

// checkProgram checks a hook or a health script: a path in the archive, or absolute for an exec artifact.
func (m *Manifest) checkProgram(launchable, path string, args []string) field.Errors {
	var errs field.Errors
	allowed := InnerPath
	switch l := m.LaunchableOf(launchable); {
	case l == nil && launchable != "":
		names := field.Each(m.Launchables, func(l Launchable) string { return l.Name })
		errs.Add("launchable", launchable, "the name of one of the pod's launchables: "+
			orNone(names, "(the pod has none)"))
	case l != nil && l.Artifact.IsOnNode():
		allowed = AbsolutePath
		allowed.allowed += fmt.Sprintf(": %s has an exec artifact", l.Name)
	case l != nil && l.Artifact.IsImage():
		errs.Add("path", path, fmt.Sprintf("nothing: %s has an image, and no programs run beside a container yet", l.Name))
		return errs
	}
	allowed.checkGiven(&errs, "path", path)
	checkArgs(&errs, "args", args)
	return errs
}

func orNone(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, ", ")
}
