package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// ours matches a variable that the node replaces, such as ${PORT_HTTP}. For $${PORT_HTTP} the node writes ${PORT_HTTP},
// and it does not change variables with other names, so the program or its shell can expand both.
var ours = regexp.MustCompile(`(\$?)\$\{((?:PORT|POD|RC|VOLUME)_[A-Za-z0-9_]*)\}`)

// podVariables are the variables that each pod has.
var podVariables = []string{"POD_DIGEST", "POD_HOME", "POD_ID", "POD_INDEX", "POD_REPLICAS", "POD_ROLE", "RC_ID"}

// Expand replaces the node's variables in a text, but not variables in their values. A variable without a value is
// replaced with an empty text, like in a shell. (Validate refuses variables that are not in Variables.)
func Expand(text string, values map[string]string) string {
	return ours.ReplaceAllStringFunc(text, func(found string) string {
		parts := ours.FindStringSubmatch(found)
		if parts[1] != "" {
			return found[1:]
		}
		return values[parts[2]]
	})
}

// ExpandAll is Expand for each text.
func ExpandAll(texts []string, values map[string]string) []string {
	return field.Each(texts, func(text string) string { return Expand(text, values) })
}

// VariableSuffix is a name of a port or volume in a variable's name. Different names give different results.
func VariableSuffix(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// Variables returns the variables that the pod has, sorted.
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

func (m *Manifest) validateVariables(errs *field.Errors) {
	names := m.Variables()
	m.eachExpanded(func(path, text string) {
		for _, parts := range ours.FindAllStringSubmatch(text, -1) {
			if parts[1] == "" && !slices.Contains(names, parts[2]) {
				errs.Add(path, "${"+parts[2]+"}",
					fmt.Sprintf("a variable that the pod has: %s; $${%s} stands for the text itself",
						strings.Join(names, ", "), parts[2]))
			}
		}
	})
}

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
