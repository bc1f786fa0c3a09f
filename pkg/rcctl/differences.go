package rcctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"unicode/utf8"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// leafValue is one scalar of a document.
type leafValue struct {
	path   string
	text   string // as JSON
	secret bool   // a value of the environment or the configuration: whether it changed may be said, what it is may not
}

// differences returns what changes from one record and manifest to another, one line for each field: "path: before ->
// after", sorted by path. before and its manifest may be nil. Entries of lists are named by their role or name, so that
// an inserted one does not make all that follow look changed.
func differences(before *rc.RC, beforePod *manifest.Manifest, after *rc.RC, afterPod *manifest.Manifest) []string {
	old, updated := flatten(before, beforePod), flatten(after, afterPod)
	paths := slices.Collect(maps.Keys(updated))
	for path := range old {
		if _, both := updated[path]; !both {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	var lines []string
	for _, path := range paths {
		a, b := old[path], updated[path]
		if a.text != b.text {
			lines = append(lines, fmt.Sprintf("%s: %s -> %s", path, a.shown(), b.shown()))
		}
	}
	if len(lines) == 0 && !same(before, after) {
		lines = append(lines, "order of replica_groups changed")
	}
	return lines
}

// maxShownValue bounds one side of a line, in bytes.
const maxShownValue = 80

func (v leafValue) shown() string {
	switch {
	case v.text == "":
		return "(none)"
	case v.secret:
		return "(not shown)"
	case len(v.text) <= maxShownValue:
		return v.text
	}
	cut := maxShownValue
	for !utf8.RuneStart(v.text[cut]) {
		cut--
	}
	return v.text[:cut] + "..."
}

// bookkeeping are fields of the record that every change moves, or none.
var bookkeeping = [...]string{"id", "name", "generation", "changed_by", "allow_mass_stop"}

func flatten(r *rc.RC, m *manifest.Manifest) map[string]leafValue {
	into := map[string]leafValue{}
	if r != nil {
		record, _ := plain(r).(map[string]any)
		for _, key := range bookkeeping {
			delete(record, key)
		}
		for key, value := range record {
			flattenValue(key, value, false, into)
		}
	}
	if m != nil {
		flattenValue("pod", plain(m), false, into)
	}
	return into
}

// plain turns a record into maps, lists and scalars. A record is made of plain fields, so this cannot fail.
func plain(record any) any {
	data, err := json.Marshal(record)
	if err != nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var value any
	_ = dec.Decode(&value) // what was just encoded can be decoded
	return value
}

func flattenValue(path string, value any, secret bool, into map[string]leafValue) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			flattenValue(path+"."+key, inner, secret || key == "env" || key == "config", into)
		}
	case []any:
		for i, inner := range v {
			flattenValue(fmt.Sprintf("%s[%s]", path, entryName(i, inner)), inner, secret, into)
		}
	default:
		text, err := json.Marshal(v)
		if err == nil {
			into[path] = leafValue{path: path, text: string(text), secret: secret}
		}
	}
}

// entryName names an entry of a list by what tells it from the others.
func entryName(i int, entry any) string {
	if m, ok := entry.(map[string]any); ok {
		for _, key := range []string{"role", "name"} {
			if name, ok := m[key].(string); ok {
				return name
			}
		}
	}
	return fmt.Sprint(i)
}

// same reports whether two records ask for the same. Who asked, and when, does not count.
func same(a, b *rc.RC) bool {
	if a == nil || b == nil {
		return a == b
	}
	return bytes.Equal(wishes(*a), wishes(*b))
}

func wishes(r rc.RC) []byte {
	r.Generation, r.Toggled, r.ChangedBy, r.AllowMassStop = 0, 0, "", 0
	data, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	return data
}

// forTerminal shortens the digests in a line; the audit record has them in full.
func forTerminal(line string) string {
	return regexp.MustCompile(`[0-9a-f]{64}`).ReplaceAllStringFunc(line, inspect.Short)
}
