package manifest

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Limits on what one manifest may hold; a manifest is read by every node that runs it and travels in transactions.
const (
	MaxLaunchables = 16
	MaxPorts       = 32
	MaxArgs        = 128
	MaxEnv         = 128
	MaxLabels      = 64        // in one set of labels
	MaxTextBytes   = 4096      // one argument, environment value or URL
	MaxBytes       = 65_536    // the whole manifest in canonical JSON
	MaxCPU         = 1_000_000 // thousandths of a core, one process
	MaxMemory      = 1 << 50   // bytes, one process
)

// MinHealthInterval is the shortest that a Consul agent takes; it would quietly use it for anything shorter.
const MinHealthInterval = time.Second

var (
	hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)
	envName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Validate reports every mistake in the manifest, with paths from its top.
func (m *Manifest) Validate() field.Errors {
	var errs field.Errors
	if m.Version != Version {
		errs.Add("version", m.Version, fmt.Sprint(Version))
	}
	errs.CheckName("id", m.ID)
	checkCount(&errs, "launchables", len(m.Launchables), 1, MaxLaunchables)
	names := map[string]bool{}
	for i := range m.Launchables {
		path := fmt.Sprintf("launchables[%d]", i)
		errs.Nest(path, m.Launchables[i].validate())
		checkUnique(&errs, path+".name", m.Launchables[i].Name, names)
	}
	m.validatePorts(&errs)
	if m.Health != nil {
		errs.Nest("health", m.Health.validate(m.PortMap()))
	}
	ValidateLabels(&errs, "labels", m.Labels)
	if canonical, err := m.Canonical(); err == nil && len(canonical) > MaxBytes {
		errs.Add("", field.Text(fmt.Sprintf("%d bytes of canonical JSON", len(canonical))), fmt.Sprintf("at most %d bytes", MaxBytes))
	}
	return errs
}

func (m *Manifest) validatePorts(errs *field.Errors) {
	checkCount(errs, "ports", len(m.Ports), 0, MaxPorts)
	names, numbers := map[string]bool{}, map[string]bool{}
	for i, p := range m.Ports {
		path := fmt.Sprintf("ports[%d]", i)
		errs.CheckName(path+".name", p.Name)
		checkUnique(errs, path+".name", p.Name, names)
		if p.Port < 1 || p.Port > 65535 {
			errs.Add(path+".port", p.Port, "a TCP port from 1 to 65535")
			continue
		}
		checkUnique(errs, path+".port", fmt.Sprint(p.Port), numbers)
	}
}

func (l *Launchable) validate() field.Errors {
	var errs field.Errors
	errs.CheckName("name", l.Name)
	errs.Nest("artifact", l.Artifact.validate())
	checkCount(&errs, "args", len(l.Args), 0, MaxArgs)
	for i, arg := range l.Args {
		checkText(&errs, fmt.Sprintf("args[%d]", i), arg)
	}
	checkCount(&errs, "env", len(l.Env), 0, MaxEnv)
	for _, name := range slices.Sorted(maps.Keys(l.Env)) {
		if !envName.MatchString(name) {
			errs.Add("env."+name, name, "a name of letters, digits and '_' that does not start with a digit")
		}
		checkText(&errs, "env."+name, l.Env[name])
	}
	if l.Resources.CPU < 0 || l.Resources.CPU > MaxCPU {
		errs.Add("resources.cpu", l.Resources.CPU, fmt.Sprintf("thousandths of a core, from 0 to %d", MaxCPU))
	}
	if l.Resources.Memory < 0 || l.Resources.Memory > MaxMemory {
		errs.Add("resources.memory", l.Resources.Memory, fmt.Sprintf("bytes, from 0 to %d", int64(MaxMemory)))
	}
	return errs
}

func (a *Artifact) validate() field.Errors {
	var errs field.Errors
	switch a.Kind {
	case "":
		errs.Missing("kind", ArtifactTar)
	case ArtifactTar:
	default:
		errs.Add("kind", a.Kind, ArtifactTar)
	}
	const urlAllowed = "file:///absolute/path or https://host/path"
	u, err := url.Parse(a.URL)
	switch {
	case a.URL == "":
		errs.Missing("url", urlAllowed)
	case err != nil, len(a.URL) > MaxTextBytes:
		errs.Add("url", a.URL, urlAllowed)
	case u.Scheme == "file" && u.Host == "" && strings.HasPrefix(u.Path, "/") && u.RawQuery == "" && u.Fragment == "":
	case u.Scheme == "https" && u.Hostname() != "" && u.User == nil && u.Fragment == "":
	default:
		errs.Add("url", a.URL, urlAllowed)
	}
	const digestAllowed = "64 lower-case hex digits (the output of sha256sum)"
	switch {
	case a.SHA256 == "":
		errs.Missing("sha256", digestAllowed)
	case !hexDigest.MatchString(a.SHA256):
		errs.Add("sha256", a.SHA256, digestAllowed)
	}
	return errs
}

func (h *Health) validate(ports map[string]int) field.Errors {
	var errs field.Errors
	const oneOf = "exactly one of http and tcp"
	switch {
	case h.HTTP == nil && h.TCP == nil:
		errs.Missing("", oneOf)
	case h.HTTP != nil && h.TCP != nil:
		errs.Add("", field.Text("http together with tcp"), oneOf)
	}
	named := func(path, port string) {
		allowed := "the name of one of the pod's ports: " + orNone(slices.Sorted(maps.Keys(ports)))
		if port == "" {
			errs.Missing(path, allowed)
		} else if _, ok := ports[port]; !ok {
			errs.Add(path, port, allowed)
		}
	}
	if h.HTTP != nil {
		named("http.port", h.HTTP.Port)
		h.HTTP.validatePath(&errs)
	}
	if h.TCP != nil {
		named("tcp.port", h.TCP.Port)
	}
	if h.Interval != nil && time.Duration(*h.Interval) < MinHealthInterval {
		errs.Add("interval", time.Duration(*h.Interval).String(), "a length of time of 1s or more, such as \"2s\"")
	}
	if h.Timeout != nil && *h.Timeout == 0 {
		errs.Add("timeout", "0s", "a length of time greater than zero, such as \"2s\"")
	}
	return errs
}

// validatePath accepts what can be put behind http://host:port and still asks for what was written.
func (c *HTTPCheck) validatePath(errs *field.Errors) {
	const allowed = "a path that starts with '/', without spaces, '#' or '..' segments"
	path, _, _ := strings.Cut(c.Path, "?")
	odd := func(r rune) bool { return r == '#' || unicode.IsSpace(r) || !unicode.IsPrint(r) }
	switch _, err := url.ParseRequestURI(c.Path); {
	case c.Path == "":
		errs.Missing("http.path", allowed)
	case err != nil, !strings.HasPrefix(path, "/"), len(c.Path) > MaxTextBytes,
		strings.ContainsFunc(c.Path, odd), slices.Contains(strings.Split(path, "/"), ".."):
		errs.Add("http.path", c.Path, allowed)
	}
}

// ValidateLabels records every label whose key or value is not in Kubernetes' label syntax, and too many labels.
func ValidateLabels(errs *field.Errors, path string, set map[string]string) {
	checkCount(errs, path, len(set), 0, MaxLabels)
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if _, err := labels.ValidatedSelectorFromSet(labels.Set{key: set[key]}); err != nil {
			errs.Add(path+"."+key, key+"="+set[key],
				"labels in Kubernetes' syntax: an optional DNS prefix and '/', then up to 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit")
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

// checkUnique records a value that was seen before. An empty one is a mistake of another kind.
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

func orNone(names []string) string {
	if len(names) == 0 {
		return "(the pod names no ports)"
	}
	return strings.Join(names, ", ")
}
