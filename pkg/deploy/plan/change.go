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

// ChangeKind is what a change of a document takes.
type ChangeKind string

// The kinds, each more than the one before.
const (
	UpToDate      ChangeKind = "up-to-date"
	NeedsUpdate   ChangeKind = "needs-update"   // the controller stays: counts, labels, knobs, limits, or an upgrade in place
	NeedsRecreate ChangeKind = "needs-recreate" // a new revision
)

// FieldChange is one field that differs.
type FieldChange struct {
	Path   string     `json:"path"`
	From   Leaf       `json:"from,omitzero"`
	To     Leaf       `json:"to,omitzero"`
	Secret bool       `json:"secret,omitempty"` // whether it changed may be said, what it is may not
	Kind   ChangeKind `json:"kind"`
	Why    string     `json:"why"`
}

// IsOrder reports whether it is no field that differs but the order of a list.
func (f FieldChange) IsOrder() bool { return strings.HasSuffix(f.Path, orderOf) }

// aboutRollouts reports whether the field says nothing about pods and controllers.
func (f FieldChange) aboutRollouts() bool { return f.Why == whyRollouts }

const whyRollouts = "it is about rollouts, no pod changes"

// String shows the field on one line.
func (f FieldChange) String() string {
	from, to := apart(f.From, f.To)
	return fmt.Sprintf("%s: %s -> %s", f.Path, from, to)
}

// SpecChange is what differs between two documents, and what that takes.
type SpecChange struct {
	Kind   ChangeKind    `json:"kind"`
	Fields []FieldChange `json:"fields"` // by their paths
}

// EvalSpecChange compares two resolved documents of one service. nil counts as empty. The order of maps, volumes and
// ports does not count, nor does whether a default is written out.
func EvalSpecChange(current, updated *record.ServiceSpec) SpecChange {
	knobs := updated.KnobsAfter(current)
	change := evalSpecChange(current, updated, knobs.Strategy == rollout.InPlaceStrategy)
	if onlyLimits(current, updated) {
		change.relimit()
	}
	return change
}

// evalSpecChange is EvalSpecChange where pods are upgraded in place, or are not.
func evalSpecChange(current, updated *record.ServiceSpec, inPlace bool) SpecChange {
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
		f.Kind, f.Why = whatItTakes(f.Path, inPlace)
	}
	change.Kind = kindOf(change.Fields)
	return change
}

// kindOf returns what a change of fields takes that say what each of them takes.
func kindOf(fields []FieldChange) ChangeKind {
	kind := UpToDate
	for _, f := range fields {
		if f.Kind == NeedsRecreate || kind == UpToDate {
			kind = f.Kind
		}
	}
	return kind
}

// withDefaults writes out the defaults of what a new revision would be made for.
func withDefaults(s *record.ServiceSpec) *record.ServiceSpec {
	out := *s
	if s.Pod != nil {
		out.Pod = s.Pod.WithDefaults()
	}
	out.Mode, out.Placing, out.Strategy = cmp.Or(s.Mode, rc.Replicas), cmp.Or(s.Placing, rc.PlaceSpread), s.Allocation()
	return &out
}

// dropOnly removes the defaults that one document alone has, because that document does not say them. A new process has
// such defaults.
func dropOnly(filled, plain, other map[string]Leaf) {
	maps.DeleteFunc(filled, func(path string, _ Leaf) bool {
		_, said := plain[path]
		_, both := other[path]
		return !said && !both
	})
}

// Differences lists the fields that differ, by their paths. What they take is left open.
func Differences(before, after map[string]Leaf) []FieldChange {
	either := maps.Clone(before)
	maps.Copy(either, after)
	var fields []FieldChange
	for _, path := range slices.Sorted(maps.Keys(either)) {
		a, b := before[path], after[path]
		if a.Text == b.Text || strings.HasSuffix(path, orderOf) && !slices.Equal(sortedNames(a.Text), sortedNames(b.Text)) {
			continue
		}
		fields = append(fields, FieldChange{Path: path, From: a, To: b, Secret: a.Secret || b.Secret})
	}
	return fields
}

// whatItTakes says what a change of one field takes, and why.
func whatItTakes(path string, inPlace bool) (ChangeKind, string) {
	switch topOf(path) {
	case "pod":
		if inPlace {
			return NeedsUpdate, "the pods are upgraded where they are"
		}
		return NeedsRecreate, "a pod's manifest never changes while it runs"
	case "node_selector", "mode", "max_per_node", "spread", "affinity", "placing", "strategy":
		if inPlace {
			return NeedsUpdate, "pods that are in the wrong place are moved"
		}
		return NeedsRecreate, "pods are placed anew, in stages"
	case "update", "digests", "pre_deploy":
		return NeedsUpdate, whyRollouts
	case "pod_labels":
		return NeedsUpdate, "pods get them without a restart"
	case "replica_groups":
		return whatGroupsTake(path, inPlace)
	default:
		return NeedsUpdate, "the controller changes, its pods stay"
	}
}

// whatGroupsTake is whatItTakes for a field of a replica group.
func whatGroupsTake(path string, inPlace bool) (ChangeKind, string) {
	_, name, _ := strings.Cut(path, "].")
	switch {
	case isCount(path):
		return NeedsUpdate, "pods are added or removed"
	case slices.Contains([]string{"env", "command", "resources"}, topOf(name)):
		return whatItTakes("pod", inPlace)
	default:
		return whatItTakes(topOf(name), inPlace)
	}
}

// isCount reports whether a path leads to how many replicas of which roles there are.
func isCount(path string) bool {
	_, name, _ := strings.Cut(path, "].")
	return topOf(path) == "replica_groups" && (name == "" || name == "role" || name == "count")
}

// topOf returns the name of the field of a record that a path leads into.
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

// maxShown bounds one side of a line, in characters, and before says how much of them is shown of what both sides begin
// with where not all of it is.
const (
	maxShown = 80
	before   = 20
)

// String shows the leaf, unless it is secret.
func (l Leaf) String() string { return l.from(0) }

// from shows the leaf from a character on, unless it is secret.
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

// apart shows two leaves so that it is seen where they differ.
func apart(a, b Leaf) (from, to string) {
	one, other := []rune(a.Text), []rune(b.Text)
	same := 0
	for same < min(len(one), len(other)) && one[same] == other[same] {
		same++
	}
	start := 0
	if same > maxShown-before { // it would be at the end, or not to be seen
		start = same - before
	}
	return a.from(start), b.from(start)
}

// IsZero leaves out of JSON what is not there, and what may not be shown.
func (l Leaf) IsZero() bool { return l.Text == "" || l.Secret }

// MarshalJSON implements json.Marshaler.
func (l Leaf) MarshalJSON() ([]byte, error) {
	if json.Valid([]byte(l.Text)) {
		return []byte(l.Text), nil
	}
	return json.Marshal(l.Text)
}

// leavesOf returns the scalars of a document by their paths. What is empty has none.
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

// Flatten adds the scalars of a record by their paths below one, or with none above them. Entries of lists are named by their role or name, so that
// an inserted one does not make all that follow look changed. What is empty has none.
func Flatten(path string, record any, into map[string]Leaf) {
	data, err := json.Marshal(record)
	if err != nil {
		return // a record is made of plain fields
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var value any
	_ = dec.Decode(&value) // what was just encoded can be decoded
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

// unordered are the lists whose order says nothing.
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

// orderOf ends the path of the order of a list whose entries have names. It differs only where the entries are the same.
const orderOf = " (order)"

func sortedNames(list string) []string {
	return slices.Sorted(slices.Values(strings.Split(list, ", ")))
}

// entryName names an entry of a list by what tells it from the others, if it has such a name.
func entryName(entry any) (name string, named bool) {
	m, _ := entry.(map[string]any)
	for _, key := range []string{"role", "name"} {
		if name, is := m[key].(string); is {
			return name, true
		}
	}
	return "", false
}
