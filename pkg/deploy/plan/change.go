package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// ChangeKind is what a change of a document needs.
type ChangeKind string

// Each kind needs more than the one before.
const (
	UpToDate ChangeKind = "up-to-date"
	// the controller is kept: counts, labels, knobs, limits, or an upgrade in place
	NeedsUpdate   ChangeKind = "needs-update"
	NeedsRecreate ChangeKind = "needs-recreate" // a new revision
)

// FieldChange is one field that differs.
type FieldChange struct {
	Path   string     `json:"path"`
	From   Leaf       `json:"from,omitzero"`
	To     Leaf       `json:"to,omitzero"`
	Secret bool       `json:"secret,omitempty"` // the change may be shown, the values may not
	Kind   ChangeKind `json:"kind"`
	Why    string     `json:"why"`
}

// IsOrder reports whether the difference is the order of a list.
func (f FieldChange) IsOrder() bool { return strings.HasSuffix(f.Path, orderOf) }

// aboutRollouts reports whether no pod or controller depends on the field.
func (f FieldChange) aboutRollouts() bool { return f.Why == whyRollouts }

const whyRollouts = "it is about rollouts, no pod changes"

// String is one line.
func (f FieldChange) String() string {
	from, to := apart(f.From, f.To)
	return fmt.Sprintf("%s: %s -> %s", f.Path, from, to)
}

// SpecChange is the difference between two documents, and what it needs.
type SpecChange struct {
	Kind   ChangeKind    `json:"kind"`
	Fields []FieldChange `json:"fields"` // by their paths
}

// EvalSpecChange compares two resolved documents of one service; nil is an empty one. It ignores the order of maps,
// volumes and ports, and whether a default is written out.
func EvalSpecChange(current, updated *record.ServiceSpec) SpecChange {
	change := evalSpecChange(current, updated, updated.KnobsAfter(current).Strategy)
	if onlyLimits(current, updated) {
		return change.relimited()
	}
	return change
}

// evalSpecChange is EvalSpecChange for a rollout with this strategy, without the exception for limits of CPU and
// memory.
func evalSpecChange(current, updated *record.ServiceSpec, strategy string) SpecChange {
	before, after := leavesOf(current), leavesOf(updated)
	if current != nil {
		from, to := before, after
		before, after = leavesOf(withDefaults(current)), leavesOf(withDefaults(updated))
		dropOnly(before, from, after)
		dropOnly(after, to, before)
	}
	change := SpecChange{Fields: Differences(before, after)}
	for i := range change.Fields {
		f := &change.Fields[i]
		f.Kind, f.Why = whatItTakes(f.Path, strategy)
	}
	change.Kind = kindOf(change.Fields)
	return change
}

func kindOf(fields []FieldChange) ChangeKind {
	kind := UpToDate
	for _, f := range fields {
		if f.Kind == NeedsRecreate || kind == UpToDate {
			kind = f.Kind
		}
	}
	return kind
}

// withDefaults sets the defaults of fields whose change needs a new revision.
func withDefaults(s *record.ServiceSpec) *record.ServiceSpec {
	out := *s
	if s.Pod != nil {
		out.Pod = s.Pod.WithDefaults()
	}
	out.Mode, out.Placing, out.Strategy = cmp.Or(s.Mode, rc.Replicas), cmp.Or(s.Placing, rc.PlaceSpread), s.Allocation()
	return &out
}

// filled is the document plain with its defaults. dropOnly removes each default that other, the second document with
// its defaults, does not have. Otherwise the difference would list all defaults of a process that only one document
// has.
func dropOnly(filled, plain, other map[string]Leaf) {
	maps.DeleteFunc(filled, func(path string, _ Leaf) bool {
		_, said := plain[path]
		_, both := other[path]
		return !said && !both
	})
}

// Differences lists the fields that differ, by their paths, without Kind and Why.
func Differences(before, after map[string]Leaf) []FieldChange {
	either := maps.Clone(before)
	maps.Copy(either, after)
	var fields []FieldChange
	for _, path := range slices.Sorted(maps.Keys(either)) {
		a, b := before[path], after[path]
		if a.Text == b.Text ||
			strings.HasSuffix(path, orderOf) && !slices.Equal(sortedNames(a.Text), sortedNames(b.Text)) {
			continue
		}
		fields = append(fields, FieldChange{Path: path, From: a, To: b, Secret: a.Secret || b.Secret})
	}
	return fields
}

func whatItTakes(path, strategy string) (ChangeKind, string) {
	switch topOf(path) {
	case "pod":
		if strategy == rollout.InPlaceStrategy {
			return NeedsUpdate, "the pods are upgraded where they are"
		}
		return NeedsRecreate, "a pod's manifest never changes while it runs"
	case "node_selector", "mode", "max_per_node", "spread", "affinity", "placing", "strategy":
		if strategy == rollout.InPlaceStrategy {
			return NeedsUpdate, "pods that are in the wrong place are moved"
		}
		return NeedsRecreate, "pods are placed anew, in stages"
	case "update", "digests", "pre_deploy":
		return NeedsUpdate, whyRollouts
	case "pod_labels":
		return NeedsUpdate, "pods get them without a restart"
	case "replica_groups":
		return whatGroupsTake(path, strategy)
	default:
		return NeedsUpdate, "the controller changes, its pods stay"
	}
}

func whatGroupsTake(path, strategy string) (ChangeKind, string) {
	_, name, _ := strings.Cut(path, "].")
	switch {
	case isCount(path):
		return NeedsUpdate, "pods are added or removed"
	case slices.Contains([]string{"env", "command", "resources"}, topOf(name)):
		return whatItTakes("pod", strategy)
	default:
		return whatItTakes(topOf(name), strategy)
	}
}

// isCount reports whether a path leads to a number of replicas, or to the roles.
func isCount(path string) bool {
	_, name, _ := strings.Cut(path, "].")
	return topOf(path) == "replica_groups" && (name == "" || name == "role" || name == "count")
}

// topOf returns the name of the top field on a path.
func topOf(path string) string {
	if i := strings.IndexAny(path, ".[ "); i > 0 {
		return path[:i]
	}
	return path
}

// Leaf is one scalar of a document, or the order of a list.
type Leaf struct {
	Text   string // a scalar as JSON; empty: there is none
	Secret bool
}

// maxShown limits the shown characters of a value. If two values begin alike and the beginning is cut, before is how
// many equal characters are still shown.
const (
	maxShown = 80
	before   = 20
)

// String is the leaf, unless it is secret.
func (l Leaf) String() string { return l.from(0) }

func (l Leaf) from(start int) string {
	runes := []rune(l.Text)
	switch {
	case l.Text == "":
		return "(none)"
	case l.Secret:
		return "(not shown)"
	}
	text := ""
	if start > 0 {
		runes, text = runes[start:], "..."
	}
	if len(runes) > maxShown {
		return text + string(runes[:maxShown]) + "..."
	}
	return text + string(runes)
}

func apart(a, b Leaf) (from, to string) {
	one, other := []rune(a.Text), []rune(b.Text)
	same := 0
	for same < min(len(one), len(other)) && one[same] == other[same] {
		same++
	}
	start := 0
	if same > maxShown-before { // the difference would be at the end, or cut off
		start = same - before
	}
	return a.from(start), b.from(start)
}

// IsZero leaves missing and secret values out of the JSON.
func (l Leaf) IsZero() bool { return l.Text == "" || l.Secret }

// MarshalJSON implements json.Marshaler.
func (l Leaf) MarshalJSON() ([]byte, error) {
	if json.Valid([]byte(l.Text)) {
		return []byte(l.Text), nil
	}
	return json.Marshal(l.Text)
}

func leavesOf(s *record.ServiceSpec) map[string]Leaf {
	into := map[string]Leaf{}
	if s == nil {
		return into
	}
	plain := *s
	plain.ReplicaGroups, plain.Replicas, plain.Name = s.Groups(), nil, ""
	Flatten("", &plain, into)
	return into
}

// Flatten adds the scalars of a record by their paths below path, without empty values. Paths name entries of lists by
// role or name, because otherwise all entries after an inserted one would look changed.
func Flatten(path string, record any, into map[string]Leaf) {
	data, err := json.Marshal(record)
	if err != nil {
		return // a record is made of plain fields
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var value any
	_ = dec.Decode(&value) // decodes what this function has encoded
	flattenValue(path, value, false, into)
}

func flattenValue(path string, value any, secret bool, into map[string]Leaf) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			flattenValue(strings.TrimPrefix(path+"."+key, "."), inner, secret || key == "env" || key == "config", into)
		}
	case []any:
		flattenList(path, v, secret, into)
	default:
		text, _ := json.Marshal(v) // a scalar
		into[path] = Leaf{Text: string(text), Secret: secret}
	}
}

var unordered = []string{"pod.volumes", "pod.ports"}

func flattenList(path string, list []any, secret bool, into map[string]Leaf) {
	var names []string
	for i, inner := range list {
		name, named := entryName(inner)
		if named {
			names = append(names, name)
		} else {
			name = fmt.Sprint(i)
		}
		flattenValue(fmt.Sprintf("%s[%s]", path, name), inner, secret, into)
	}
	if len(names) > 0 && !slices.Contains(unordered, path) {
		into[path+orderOf] = Leaf{Text: strings.Join(names, ", ")}
	}
}

// A list of named entries has one more leaf: the names in their order. The path of this leaf ends with orderOf. The
// order is compared only if both lists have the same entries.
const orderOf = " (order)"

func sortedNames(list string) []string {
	return slices.Sorted(slices.Values(strings.Split(list, ", ")))
}

func entryName(entry any) (name string, named bool) {
	m, _ := entry.(map[string]any)
	for _, key := range []string{"role", "name"} {
		if name, is := m[key].(string); is {
			return name, true
		}
	}
	return "", false
}
