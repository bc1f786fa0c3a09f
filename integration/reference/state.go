package reference

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/janitor"
	"github.com/rcfarm/rcfarm/pkg/farm/push"
	"github.com/rcfarm/rcfarm/pkg/farm/roll"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/ownerless"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func metrics(prefix string) (string, error) {
	reg := prometheus.NewPedanticRegistry()
	app.ObstacleMetric(reg, "farm")
	app.ObstacleMetric(reg, "preparer")
	farm.NewMetrics(reg)
	alert.NewHookMetrics(reg)
	push.NewMetrics(reg)
	roll.NewMetrics(reg)
	janitor.NewMetrics(reg)
	preparer.NewMetrics(reg)
	families, err := reg.Gather()
	if err != nil {
		return "", err
	}
	rows := [][]string{{"metric", "type", "meaning", "labels"}}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		values := map[string][]string{} // of labels, all of which exist from the start
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				values[label.GetName()] = append(values[label.GetName()], label.GetValue())
			}
		}
		labels := slices.Sorted(maps.Keys(values))
		for i, label := range labels {
			labels[i] = "`" + label + "`: " + strings.Join(slices.Compact(values[label]), ", ")
		}
		rows = append(rows, []string{
			"`" + f.GetName() + "`", strings.ToLower(f.GetType().String()),
			strings.TrimSuffix(f.GetHelp(), "."), strings.Join(labels, "; "),
		})
	}
	return markdown(rows), nil
}

func features() string {
	rows := [][]string{{"feature", "since", "what it brings"}}
	for _, f := range feature.Known {
		rows = append(rows, []string{"`" + f.Name + "`", f.Since, f.What})
	}
	return markdown(rows)
}

type constant struct{ name, value, text string }

// constants returns the constants of a file whose values are texts, in the file's order.
func constants(parts ...string) ([]constant, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(parts...), nil,
		parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []constant
	for _, decl := range parsed.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			one := spec.(*ast.ValueSpec)
			comment := one.Doc
			if comment == nil && len(group.Specs) == 1 {
				comment = group.Doc
			}
			if comment == nil {
				comment = one.Comment
			}
			for i, name := range one.Names {
				if i >= len(one.Values) {
					continue
				}
				if literal, ok := one.Values[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					value, err := strconv.Unquote(literal.Value)
					if err != nil {
						return nil, err
					}
					found = append(found, constant{
						name: name.Name, value: value,
						text: strings.Join(strings.Fields(comment.Text()), " "),
					})
				}
			}
		}
	}
	return found, nil
}

// meanings returns the comments of the form "Name: meaning." about conditions and alerts, and the names in order.
func meanings(root string) (names []string, texts map[string]string, err error) {
	texts = map[string]string{}
	all, err := constants(root, "pkg/rc/conditions.go")
	for _, c := range all {
		if text, ok := strings.CutPrefix(c.text, c.value+": "); ok {
			names, texts[c.value] = append(names, c.value), strings.TrimSuffix(text, ".")
		}
	}
	for _, k := range rc.Kinds {
		if texts[string(k.Type)] == "" && err == nil {
			err = fmt.Errorf("no comment says what %s means", k.Type)
		}
	}
	return names, texts, err
}

// raised describes how long farms wait before they alert.
func raised(name string) string {
	for _, rule := range rc.Alerts {
		switch {
		case string(rule.Type) != name:
		case rule.After == 0:
			return "at once"
		case rule.After < time.Minute:
			return fmt.Sprintf("%d s", rule.After/time.Second)
		case rule.After < time.Hour:
			return fmt.Sprintf("%d min", rule.After/time.Minute)
		default:
			return fmt.Sprintf("%d h", rule.After/time.Hour)
		}
	}
	return ""
}

func cure(name string) string { return "[what to do](../runbook.md#" + strings.ToLower(name) + ")" }

func conditions(root string) (string, error) {
	names, texts, err := meanings(root)
	rows := [][]string{{"condition", "meaning", "alert after", "see"}}
	for _, name := range names {
		if rc.SeverityOf(rc.ConditionType(name)) != rc.NoCondition {
			rows = append(rows, []string{"`" + name + "`", texts[name], raised(name), cure(name)})
		}
	}
	return markdown(rows), err
}

// alerts returns the table of incidents that are no condition.
func alerts(root string) (string, error) {
	_, texts, err := meanings(root)
	rows := [][]string{{"alert", "meaning", "raised after", "see"}}
	for _, k := range rc.Alerts {
		if name := string(k.Type); k.Severity == rc.NoCondition {
			rows = append(rows, []string{"`" + name + "`", texts[name], raised(name), cure(name)})
		}
	}
	return markdown(rows), err
}

func records(string) (string, error) {
	rows := [][]string{{"record", "told as", "counted by", "what helps"}}
	for _, k := range ownerless.Kinds {
		if k.What == "" || k.Cure == "" {
			return "", fmt.Errorf("nothing says what records of the kind %s are, or what helps", k.Name)
		}
		row := []string{k.What, "", "", k.Cure}
		if k.Alert != "" {
			row[1] = "`" + string(k.Alert) + "`"
		}
		if k.Key != "" {
			row[1] += " (`" + k.Key + "<rc-id>`)"
		}
		if k.Metric != "" {
			row[2] = "`rcfarm_farm_" + k.Metric + "`"
		}
		if k.Label != "" {
			row[2] += ": " + k.Label
		}
		rows = append(rows, row)
	}
	return markdown(rows), nil
}

func states(root string) (string, error) {
	_, _, err := meanings(root)
	names := field.Each(inspect.Alarms, func(alarm rc.ConditionType) string { return "`" + string(alarm) + "`" })
	return fmt.Sprintf(
		"1. `%s`, `%s`, `%s`, `%s`;\n2. else the first of these conditions that is true: %s;\n3. else `%s` or `%s`.\n",
		inspect.Deleting, inspect.Disabled, rc.Unclaimed, inspect.Pending, strings.Join(names, ", "),
		rc.Converged, inspect.Progressing), err
}

func environment(root string) (string, error) {
	all, err := constants(root, "pkg/preparer/install/environment.go")
	rows := [][]string{{"variable", "what it is"}}
	for _, c := range all {
		prefix := strings.HasSuffix(c.name, "EnvPrefix")
		if !prefix && !strings.HasPrefix(c.name, "env") {
			continue
		}
		if c.text == "" {
			return "", fmt.Errorf("no comment says what %s is", c.value)
		}
		variable := c.value
		if prefix {
			variable += "<NAME>"
		}
		rows = append(rows, []string{"`" + variable + "`", c.text})
	}
	return markdown(rows), err
}
