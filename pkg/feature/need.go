package feature

import (
	"reflect"
	"strings"
	"sync"
)

// Tag is the struct tag with the feature of a field or, on a blank field, of the kind of record.
const Tag = "feature"

// Need is the feature that the gate must allow. The zero Need means no feature.
type Need struct {
	Feature
	Field string // path of the field with the feature, with JSON names
}

// Zero reports whether nothing is needed.
func (n Need) Zero() bool { return n.Since == "" }

// Allowed reports whether a gate allows the feature.
func (n Need) Allowed(gate string) bool { return n.Zero() || !After(n.Since, gate) }

// NeedOf returns the newest feature of the fields that are set in a record.
func NeedOf(record any) Need { return Known.needOf(record) }

func (t Table) needOf(record any) (need Need) {
	t.each(reflect.ValueOf(record), "", func(f *Feature, path string, _ reflect.Value) {
		if need.Zero() || After(f.Since, need.Since) {
			need = Need{*f, path}
		}
	})
	return need
}

// Without clears the fields of a record that a gate forbids, but no values in a map. The record must share no memory
// with others. If the whole kind of record is a feature, the writer must use NeedOf.
func Without[T any](gate string, record *T) { Known.without(gate, reflect.ValueOf(record)) }

func (t Table) without(gate string, record reflect.Value) {
	t.each(record, "", func(f *Feature, _ string, v reflect.Value) {
		if After(f.Since, gate) && v.CanSet() {
			v.SetZero()
		}
	})
}

// each visits all set fields in v that have a feature. For the feature of a kind of record the value is invalid. It
// skips features that are not in the table, which a test rules out.
func (t Table) each(v reflect.Value, path string, visit func(f *Feature, path string, v reflect.Value)) {
	if !v.IsValid() || !hasFeatures(v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		t.each(v.Elem(), path, visit) // not valid if nil
	case reflect.Slice:
		for i := range v.Len() {
			t.each(v.Index(i), path, visit)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			t.each(it.Value(), path, visit)
		}
	case reflect.Struct:
		t.eachField(v, path, visit)
	default:
	}
}

func (t Table) eachField(v reflect.Value, path string, visit func(f *Feature, path string, v reflect.Value)) {
	for _, i := range plannedFields(v.Type()) {
		of := v.Type().Field(i)
		feature := t.Named(of.Tag.Get(Tag))
		switch {
		case of.Name == "_":
			if feature != nil {
				visit(feature, path, reflect.Value{})
			}
			continue
		case feature != nil && !v.Field(i).IsZero():
			visit(feature, joined(path, of), v.Field(i))
		}
		t.each(v.Field(i), joined(path, of), visit)
	}
}

// An embedded struct adds nothing to the path.
func joined(path string, of reflect.StructField) string {
	name, _, _ := strings.Cut(of.Tag.Get("json"), ",")
	switch {
	case name == "":
		return path
	case path == "":
		return name
	default:
		return path + "." + name
	}
}

var (
	planned sync.Map // by struct type: the indices of the fields to visit
	without sync.Map // by type: whether it has no feature
)

func plannedFields(typ reflect.Type) []int {
	if known, ok := planned.Load(typ); ok {
		return known.([]int)
	}
	var plan []int
	for i := range typ.NumField() {
		if of := typ.Field(i); of.Tag.Get(Tag) != "" || hasFeatures(of.Type) {
			plan = append(plan, i)
		}
	}
	planned.Store(typ, plan)
	return plan
}

// Most types have no features, and are skipped.
func hasFeatures(typ reflect.Type) bool {
	if none, ok := without.Load(typ); ok {
		return !none.(bool)
	}
	has := findFeatures(typ, map[reflect.Type]bool{})
	without.Store(typ, !has)
	return has
}

func findFeatures(typ reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[typ] {
		return false
	}
	seen[typ] = true
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return findFeatures(typ.Elem(), seen)
	case reflect.Struct:
		for of := range typ.Fields() {
			if of.Tag.Get(Tag) != "" || findFeatures(of.Type, seen) {
				return true
			}
		}
	default:
	}
	return false
}
