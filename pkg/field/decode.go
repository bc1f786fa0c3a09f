package field

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sort"
	"strings"
)

// Decode reads one strict JSON document into the struct that into points to. Unknown fields, wrong types and values
// that a field's own UnmarshalJSON refuses come back as Errors, all of them at once. Text that is no JSON at all
// comes back as a plain error.
func Decode(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return fmt.Errorf("parse document: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("parse document: something follows the first document; allowed: exactly one document")
	}
	var errs Errors
	check(doc, reflect.TypeOf(into).Elem(), "", &errs)
	if err := errs.Err(); err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("parse document: %w", err)
	}
	return nil
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// check compares a decoded value with the Go type it is meant for and records every difference.
func check(value any, want reflect.Type, path string, errs *Errors) {
	if reflect.PointerTo(want).Implements(unmarshaler) {
		raw, err := json.Marshal(value)
		if err == nil {
			err = reflect.New(want).Interface().(json.Unmarshaler).UnmarshalJSON(raw)
		}
		var bad *Error
		switch {
		case errors.As(err, &bad):
			errs.Add(Join(orTop(path), bad.Field), bad.Value, bad.Allowed)
		case err != nil:
			errs.Add(orTop(path), value, err.Error())
		}
		return
	}
	switch want.Kind() {
	case reflect.Pointer:
		if value != nil {
			check(value, want.Elem(), path, errs)
		}
	case reflect.Struct:
		checkStruct(value, want, path, errs)
	case reflect.Slice:
		list, ok := value.([]any)
		if !ok {
			errs.Add(orTop(path), kindOf(value), "a list")
			return
		}
		for i, item := range list {
			check(item, want.Elem(), fmt.Sprintf("%s[%d]", path, i), errs)
		}
	case reflect.Map:
		m, ok := value.(map[string]any)
		if !ok {
			errs.Add(orTop(path), kindOf(value), "a map")
			return
		}
		for _, key := range sortedKeys(m) {
			check(m[key], want.Elem(), Join(path, key), errs)
		}
	case reflect.Interface:
	default:
		checkScalar(value, want, path, errs)
	}
}

func checkStruct(value any, want reflect.Type, path string, errs *Errors) {
	m, ok := value.(map[string]any)
	if !ok {
		errs.Add(orTop(path), kindOf(value), "a map with the fields "+strings.Join(fieldNames(want), ", "))
		return
	}
	types := fieldTypes(want)
	for _, key := range sortedKeys(m) {
		t, known := types[key]
		if !known {
			errs.Add(Join(path, key), unknownField{}, strings.Join(fieldNames(want), ", "))
			continue
		}
		check(m[key], t, Join(path, key), errs)
	}
}

func checkScalar(value any, want reflect.Type, path string, errs *Errors) {
	switch want.Kind() {
	case reflect.String:
		if _, ok := value.(string); !ok {
			errs.Add(orTop(path), kindOf(value), "a string")
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			errs.Add(orTop(path), kindOf(value), "true or false")
		}
	default:
		n, ok := value.(json.Number)
		if !ok {
			errs.Add(orTop(path), kindOf(value), "a whole number")
			return
		}
		if err := json.Unmarshal([]byte(n), reflect.New(want).Interface()); err != nil {
			errs.Add(orTop(path), n.String(), "a whole number that fits "+want.Kind().String())
		}
	}
}

// kindOf says what a value is, with the value itself where it is short enough to help.
func kindOf(value any) any {
	switch v := value.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "a map"
	case []any:
		return "a list"
	case json.Number:
		return "number " + v.String()
	default:
		return v
	}
}

func orTop(path string) string {
	if path == "" {
		return "document"
	}
	return path
}

// fieldTypes maps the JSON names of a struct, embedded structs included, to the types of their fields.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	types := make(map[string]reflect.Type, t.NumField())
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "":
			for n, inner := range fieldTypes(f.Type) {
				types[n] = inner
			}
		case name == "":
			types[f.Name] = f.Type
		default:
			types[name] = f.Type
		}
	}
	return types
}

func fieldNames(t reflect.Type) []string { return sortedKeys(fieldTypes(t)) }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
