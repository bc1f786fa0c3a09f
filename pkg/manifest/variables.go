package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// ours is a variable of the node's in a text of the manifest: ${PORT_HTTP}. With one more $ before it, it stands for
// itself. Other variables are for the program, or its shell, to expand.
var ours = regexp.MustCompile(`(\$?)\$\{((?:PORT|POD|RC|VOLUME)_[A-Za-z0-9_]*)\}`)

// podVariables are those that each pod has.
var podVariables = []string{"POD_DIGEST", "POD_HOME", "POD_ID", "POD_INDEX", "POD_REPLICAS", "POD_ROLE", "RC_ID"}

// Expand replaces the node's variables in a text of a manifest by their values, once: what a value holds stands for
// itself. A variable that is not among them is empty, as in a shell; Validate refuses all but those that Variables has.
func Expand(text string, values map[string]string) string {
	return ours.ReplaceAllStringFunc(text, func(found string) string {
		parts := ours.FindStringSubmatch(found)
		if parts[1] != "" {
			return found[1:]
		}
		return values[parts[2]]
	})
}

// ExpandAll is Expand for each text of a list.
func ExpandAll(texts []string, values map[string]string) []string {
	return field.Each(texts, func(text string) string { return Expand(text, values) })
}

// VariableSuffix turns the name of a port or a volume into a part of a variable's name. No two names give the same.
func VariableSuffix(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// Variables returns the names of the variables that Expand knows of the pod, in order.
func (m *Manifest) Variables() []string {
	names := slices.Clone(podVariables)
	for _, p := range m.Ports {
		names = append(names, "PORT_"+VariableSuffix(p.Name))
	}
	for _, v := range m.Volumes {
		names = append(names, "VOLUME_"+VariableSuffix(v.Name))
	}
	slices.Sort(names)
	return names
}

// validateVariables records each variable of ours that the pod does not have.
func (m *Manifest) validateVariables(errs *field.Errors) {
	names := m.Variables()
	m.eachExpanded(func(path, text string) {
		for _, parts := range ours.FindAllStringSubmatch(text, -1) {
			if parts[1] == "" && !slices.Contains(names, parts[2]) {
				errs.Add(path, "${"+parts[2]+"}", fmt.Sprintf("a variable that the pod has: %s; $${%s} stands for the text itself", strings.Join(names, ", "), parts[2]))
			}
		}
	})
}

// eachExpanded calls f with each text in which variables are expanded.
func (m *Manifest) eachExpanded(f func(path, text string)) {
	args := func(path string, args []string) {
		for i, arg := range args {
			f(fmt.Sprintf("%s.args[%d]", path, i), arg)
		}
	}
	for i := range m.Launchables {
		l, path := &m.Launchables[i], fmt.Sprintf("launchables[%d]", i)
		args(path, l.Args)
		for _, name := range slices.Sorted(maps.Keys(l.Env)) {
			f(path+".env."+name, l.Env[name])
		}
	}
	if h := m.Health; h != nil && h.HTTP != nil {
		f("health.http.path", h.HTTP.Path)
	}
	if h := m.Health; h != nil && h.Script != nil {
		args("health.script", h.Script.Args)
	}
	m.Hooks.Each(func(name string, hook *Hook) { args("hooks."+name, hook.Args) })
}
