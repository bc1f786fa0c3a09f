package store

import (
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/election/ballot"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

var update = flag.Bool("update", false, "write testdata/fields.txt; only for who has renamed a type")

// oldFields has the fields from before the version gate, by type and JSON name. No field is ever added.
const oldFields = "testdata/fields.txt"

// recordTypes returns the kinds of records, and types that are stored as bytes in records or beside them.
func recordTypes(t *testing.T) []reflect.Type {
	t.Helper()
	types := []reflect.Type{
		reflect.TypeFor[manifest.Manifest](), reflect.TypeFor[lockValue](),
		reflect.TypeFor[ballot.Record](), reflect.TypeFor[ballot.Holder](), reflect.TypeFor[ballot.Round](),
	}
	own := len(types)
	for of := range reflect.TypeFor[db]().Fields() {
		if strings.HasPrefix(of.Type.Name(), "Records[") {
			home, _ := of.Type.FieldByName("home")
			types = append(types, home.Type.In(1).Elem())
		}
	}
	if len(types) < own+20 {
		t.Fatalf("the store has only %d kinds of records", len(types)-own)
	}
	return types
}

// fieldsOf lists the fields of records by type and JSON name, each with its feature, or with the feature of its kind. A
// type that is also in a record without a feature has none.
func fieldsOf(types []reflect.Type) map[string]string {
	fields, seen := map[string]string{}, map[reflect.Type]string{}
	var visit func(typ reflect.Type, of string)
	visit = func(typ reflect.Type, of string) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			visit(typ.Elem(), of)
		case reflect.Struct:
			if was, before := seen[typ]; before && (was == "" || of != "") || typ == reflect.TypeFor[time.Time]() {
				return
			}
			seen[typ] = of
			if blank, ok := typ.FieldByName("_"); ok && blank.Tag.Get(feature.Tag) != "" {
				of = blank.Tag.Get(feature.Tag)
			}
			for f := range typ.Fields() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				own := of
				if tag := f.Tag.Get(feature.Tag); tag != "" {
					own = tag
				}
				if name != "" && name != "-" {
					fields[typ.String()+"."+name] = own
				}
				visit(f.Type, own)
			}
		default:
		}
	}
	for _, typ := range types {
		visit(typ, "")
	}
	return fields
}

// A field is older than the version gate, or names its feature. Otherwise a running program of an earlier version would
// drop it (ADR 28).
func TestEveryFieldHasAVersion(t *testing.T) {
	t.Parallel()
	fields := fieldsOf(recordTypes(t))
	if *update {
		var old []string
		for name, of := range fields {
			if of == "" {
				old = append(old, name)
			}
		}
		slices.Sort(old)
		if err := os.WriteFile(oldFields, []byte(strings.Join(old, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(oldFields)
	if err != nil {
		t.Fatal(err)
	}
	old, used := strings.Fields(string(text)), map[string]bool{}
	for _, name := range old {
		if of, there := fields[name]; !there || of != "" {
			t.Errorf("the field %s was there before the version gate, and is not any more: fields are only added. If "+
				"its type is named otherwise by now, change %s", name, oldFields)
		}
	}
	for name, of := range fields {
		used[of] = true
		switch {
		case of == "" && !slices.Contains(old, name):
			t.Errorf("the field %s is new: give it a tag feature:\"NAME\", and feature.Known a feature of that name "+
				"with the version that brings it (ADR 28); do not add it to %s", name, oldFields)
		case of != "" && feature.Known.Named(of) == nil:
			t.Errorf("the field %s has the feature %q, which feature.Known does not have", name, of)
		}
	}
	for _, f := range feature.Known {
		if !used[f.Name] {
			t.Errorf("no record has a field of the feature %s; a feature stays for ever", f.Name)
		}
	}
}

// fieldsOf finds fields in records, in types inside records, and in kinds with a feature.
func TestFieldsOf(t *testing.T) {
	t.Parallel()
	type inner struct {
		A string `json:"a"`
		B string `json:"b" feature:"b"`
	}
	type kind struct {
		_ struct{} `feature:"kind"`
		C string   `json:"c,omitempty"`
	}
	type shared struct {
		E string `json:"e"`
	}
	type outer struct {
		Newer *shared             `json:"newer" feature:"newer"`
		Older shared              `json:"older"`
		Map   map[string][]*inner `json:"map"`
		Kind  kind                `json:"kind"`
		Left  string              `json:"-"`
		Whole struct {
			D string `json:"d"`
		} `json:"whole" feature:"whole"`
	}
	got := fieldsOf([]reflect.Type{reflect.TypeFor[outer]()})
	want := map[string]string{
		"store.outer.newer": "newer", "store.outer.older": "", "store.shared.e": "", "store.outer.map": "",
		"store.outer.kind": "", "store.outer.whole": "whole", "store.inner.a": "", "store.inner.b": "b",
		"store.kind.c":                       "kind",
		`struct { D string "json:\"d\"" }.d`: "whole",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
