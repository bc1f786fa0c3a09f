// Package integration checks that the documentation and the programs agree.
package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/election"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func read(t *testing.T, parts ...string) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(append([]string{root}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func matches(pattern, text string) []string {
	var found []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		if !slices.Contains(found, m[1]) {
			found = append(found, m[1])
		}
	}
	slices.Sort(found)
	return found
}

// Every key of the schema is in docs/consul-keys.md, and every key in docs/consul-keys.md exists.
func TestKeysAreDocumented(t *testing.T) {
	t.Parallel()
	keys, err := store.NewKeys("x/")
	if err != nil {
		t.Fatal(err)
	}
	id := pod.Identity{RCID: "rc", Role: "role", Index: 1}
	var real []string
	for _, key := range []string{
		keys.Manifests.Key("d"), keys.RCs.Key("rc"), keys.Names.Key("n"), keys.Bells.Key("rc"), keys.Locks.Key("rc"),
		keys.Pods.Key(id.String()), keys.Intents.Key("n", id.String()),
		keys.Realities.Key("n", id.String()), keys.Nodes.Key("n"), keys.NodeOps.Key("n"), keys.Reservations.Key("n"),
		keys.Farms.Key("f"), keys.Statuses.Key("rc"),
		keys.Breaker.Key(), keys.Incidents.Key(), keys.Gone.Key(), keys.Audits.Key("a"), keys.Schema.Key(),
		keys.Gate.Key(), keys.Settings.Key(), keys.Requests.Key("rc", "u"), keys.Drops.Key("rc"),
		keys.OrphanPages.Below("n"), keys.Synced.Key(), keys.Heard.Key(),
		keys.Rollouts.Key("web"), keys.Deployed.Key("web"),
		election.KeyPrefix("x/"),
	} {
		top, _, _ := strings.Cut(strings.TrimPrefix(key, "x/"), "/")
		real = append(real, top)
	}
	slices.Sort(real)
	if documented := matches("(?m)^\\| `([a-z]+)", read(t, "docs", "consul-keys.md")); !slices.Equal(real, documented) {
		t.Errorf("the schema has %v,\ndocs/consul-keys.md lists %v", real, documented)
	}
}

// fields lists every field below a struct, with the names of docs/controller.md. It leaves out what docs/manifest.md
// describes. It also leaves out a group's spread and affinity, because they have the same fields as the controller's.
func fields(at string, t reflect.Type) []string {
	switch {
	case t == reflect.TypeFor[field.Duration](), t == reflect.TypeFor[manifest.Manifest](),
		t == reflect.TypeFor[manifest.Resources]():
		return nil
	case strings.HasPrefix(at, "replica_groups[].") &&
		(t == reflect.TypeFor[rc.Spread]() || t == reflect.TypeFor[[]rc.Preference]()):
		return nil
	case t.Kind() == reflect.Pointer:
		return fields(at, t.Elem())
	case t.Kind() == reflect.Slice:
		return fields(at+"[]", t.Elem())
	case t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]():
		return nil
	}
	var found []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		path := strings.TrimPrefix(at+"."+name, ".")
		found = append(append(found, path), fields(path, f.Type)...)
	}
	slices.Sort(found)
	return found
}

func firstCells(text, header string) []string {
	var found []string
	for _, table := range strings.Split(text, "\n| "+header+" |")[1:] {
		table, _, _ = strings.Cut(table, "\n\n")
		for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
			found = append(found, row[1])
		}
	}
	slices.Sort(found)
	return found
}

// Every field of a controller's document and record is in docs/controller.md, and every field in docs/controller.md
// exists.
func TestControllerIsDocumented(t *testing.T) {
	t.Parallel()
	text := read(t, "docs", "controller.md")
	spec := fields("", reflect.TypeFor[rc.Spec]())
	if diff := cmp.Diff(spec, firstCells(text, "field")); diff != "" {
		t.Errorf("the document of a controller has -, docs/controller.md lists +:\n%s", diff)
	}
	besides := slices.DeleteFunc(fields("", reflect.TypeFor[rc.RC]()), func(path string) bool {
		return slices.Contains(spec, path)
	})
	if diff := cmp.Diff(besides, firstCells(text, "record field")); diff != "" {
		t.Errorf("the record has besides -, docs/controller.md lists +:\n%s", diff)
	}
}

// docs/controller.md has the real limits and defaults.
func TestControllerLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	text := regexp.MustCompile(`(\d),(\d{3})`).ReplaceAllString(read(t, "docs", "controller.md"), "$1$2")
	for path, want := range map[string]string{
		"replica_groups": fmt.Sprintf("| list, 1 to %d | | replicas by role, at most %d in all together",
			rc.MaxGroups, rc.MaxReplicas),
		"node_selector": fmt.Sprintf("| text, up to %d bytes | every node |", rc.MaxSelectorBytes),
		"max_surge":     fmt.Sprintf("| number | `%d` |", rc.DefaultMaxSurge),
		"replicas":      "one group of the role `" + rc.DefaultRole + "`",
		"strategy": fmt.Sprintf("| `%s` or `%s` | `%[2]s` where the pod has `volumes`, else `%[1]s` |",
			rc.Dynamic, rc.Static),
		"node_loss.after":           "| `" + rc.DefaultNodeLossAfter.String() + "` |",
		"node_loss.unmanaged_after": "| `" + strings.TrimSuffix(rc.DefaultUnmanagedAfter.String(), "0s") + "` |",
	} {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(path) + "` \\|.*$").FindString(text)
		if !strings.Contains(row, want) {
			t.Errorf("%s: no %s in %q", path, want, row)
		}
	}
	for _, want := range []string{
		fmt.Sprintf("whole, from 0 to %d", rc.MaxReplicas),
		fmt.Sprintf("up to %d entries", manifest.MaxLabels),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("docs/controller.md does not say %q", want)
		}
	}
}

// Every document in docs/controller.md is valid, and the first document has nearly all fields.
func TestControllersOfTheDocsAreValid(t *testing.T) {
	t.Parallel()
	text := read(t, "docs", "controller.md")
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(text, -1)
	if len(examples) < 3 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, example := range examples {
		converted, err := document.ToJSON([]byte(example[1]), "a controller")
		if err != nil {
			t.Fatalf("%s: %v", example[1], err)
		}
		if _, err := rc.DecodeSpec(converted); err != nil {
			t.Errorf("%s: %v", example[1], err)
		}
	}
	for f := range reflect.TypeFor[rc.Spec]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "replica_groups" &&
			!strings.Contains("\n"+examples[0][1], "\n"+name+":") {
			t.Errorf("the complete example has no %s", name)
		}
	}
}

// Every document of a service in docs/examples is valid.
func TestServicesOfTheExamplesAreValid(t *testing.T) {
	t.Parallel()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "docs", "examples", "*", "*.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		converted, err := document.ToJSON(data, "a service")
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := record.Decode(converted); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Every scenario is in docs/testing.md, and every scenario in docs/testing.md exists.
func TestScenariosAreDocumented(t *testing.T) {
	t.Parallel()
	real := matches(`(?m)^\t"([a-z-]+)": +[a-zA-Z]+,$`, read(t, "integration", "e2e", "env_test.go"))
	_, table, _ := strings.Cut(read(t, "docs", "testing.md"), "| scenario |")
	if documented := matches("(?m)^\\| `([a-z-]+)`", table); !slices.Equal(real, documented) {
		t.Errorf("there are the scenarios %v,\ndocs/testing.md lists %v", real, documented)
	}
}

func TestReadmeTargetsExist(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	for _, target := range matches("`?make ([a-z0-9]+)", read(t, "README.md")) {
		if !regexp.MustCompile(`(?m)^` + target + `:`).MatchString(makefile) {
			t.Errorf("README.md says make %s; the Makefile has no such target", target)
		}
	}
}

// In the tables of docs/security.md with a column for tests, every row names tests that exist.
func TestThreatsAreTested(t *testing.T) {
	t.Parallel()
	have := newTree(t)
	rows := map[string]int{} // by heading
	for _, section := range strings.Split(read(t, "docs", "security.md"), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		_, table, _ := strings.Cut(text, "| shown by |\n")
		table, _, _ = strings.Cut(strings.TrimSpace(table), "\n\n")
		for _, row := range strings.Split(table, "\n")[1:] { // below the line
			rows[heading]++
			cells := strings.Split(row, "|")
			named := matches("`([^`]+)`", cells[len(cells)-2])
			if len(named) == 0 {
				t.Errorf("no test shows: %s", row)
			}
			for _, name := range named {
				if !have.has(name) {
					t.Errorf("there is no test %s, which should show: %s", name, row)
				}
			}
		}
	}
	for heading, least := range map[string]int{
		"A hostile pod":              25,
		"A stolen token of one node": 20, "Who can do what": 7,
	} {
		if rows[heading] < least {
			t.Errorf("docs/security.md has %d rows of %q, want %d at least", rows[heading], heading, least)
		}
	}
}
