package field

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Decode reads one strict JSON document into a struct. It returns, as Errors, all fields that are unknown or repeated,
// have a wrong type, or whose UnmarshalJSON refuses the value.
func Decode(data []byte, into any) error {
	var errs Errors
	walk(json.NewDecoder(bytes.NewReader(data)), "", &errs)
	return decode(data, into, errs)
}

func decode(data []byte, into any, errs Errors) error {
	doc, err := parse(data)
	if err != nil {
		return err
	}
	check(doc, reflect.TypeOf(into).Elem(), "", &errs)
	if err := errs.Err(); err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("parse document: %w", err)
	}
	return nil
}

// If text follows the document, parse returns an error.
func parse(data []byte) (doc any, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&doc); err != nil {
		return nil, fmt.Errorf("parse document: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse document: something follows the first document; allowed: exactly one document")
	}
	return doc, nil
}

// Read decodes one strict JSON document and validates it.
func Read[T any, P interface {
	*T
	Validate() Errors
}](data []byte) (P, error) {
	read := P(new(T))
	if err := Decode(data, read); err != nil {
		return nil, err
	}
	if err := read.Validate().Err(); err != nil {
		return nil, err
	}
	return read, nil
}

// walk finds keys that occur twice in one map, because encoding/json keeps the last of them without an error.
func walk(dec *json.Decoder, path string, errs *Errors) {
	token, err := dec.Token()
	if err != nil {
		return
	}
	switch token {
	case json.Delim('{'):
		seen := map[string]bool{}
		for dec.More() {
			token, err := dec.Token()
			if err != nil {
				return
			}
			key, _ := token.(string)
			if seen[key] {
				errs.Add(Join(path, key), Text("a second time"), "each key once")
			}
			seen[key] = true
			walk(dec, Join(path, key), errs)
		}
		_, _ = dec.Token() // the closing brace, if the JSON is valid
	case json.Delim('['):
		for i := 0; dec.More(); i++ {
			walk(dec, fmt.Sprintf("%s[%d]", path, i), errs)
		}
		_, _ = dec.Token()
	}
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func check(value any, want reflect.Type, path string, errs *Errors) {
	if reflect.PointerTo(want).Implements(unmarshaler) {
		raw, err := json.Marshal(value)
		if err == nil {
			err = reflect.New(want).Interface().(json.Unmarshaler).UnmarshalJSON(raw)
		}
		var bad *Error
		switch {
		case errors.As(err, &bad):
			errs.Add(Join(path, bad.Field), bad.Value, bad.Allowed)
		case err != nil:
			errs.Add(path, KindOf(value), err.Error())
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
			errs.Add(path, KindOf(value), "a list")
			return
		}
		for i, item := range list {
			check(item, want.Elem(), fmt.Sprintf("%s[%d]", path, i), errs)
		}
	case reflect.Map:
		m, ok := value.(map[string]any)
		if !ok {
			errs.Add(path, KindOf(value), "a map")
			return
		}
		for _, key := range slices.Sorted(maps.Keys(m)) {
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
		errs.Add(path, KindOf(value), "a map with the fields "+strings.Join(fieldNames(want), ", "))
		return
	}
	types := fieldTypes(want)
	for _, key := range slices.Sorted(maps.Keys(m)) {
		t, known := types[key]
		if !known {
			allowed := cmp.Or(unsupported(want, key), strings.Join(fieldNames(want), ", "))
			errs.Add(Join(path, key), unknownField{}, allowed)
			continue
		}
		check(m[key], t, Join(path, key), errs)
	}
}

// unsupported returns what a struct itself explains about a field that it lacks; an empty text: nothing.
func unsupported(t reflect.Type, name string) string {
	explains, ok := reflect.New(t).Interface().(interface{ Unsupported(name string) string })
	if !ok {
		return ""
	}
	return explains.Unsupported(name)
}

func checkScalar(value any, want reflect.Type, path string, errs *Errors) {
	switch want.Kind() {
	case reflect.String:
		if _, ok := value.(string); !ok {
			errs.Add(path, KindOf(value), stringAllowed(value))
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			errs.Add(path, KindOf(value), "true or false")
		}
	default:
		n, ok := value.(json.Number)
		if !ok {
			errs.Add(path, KindOf(value), "a whole number")
			return
		}
		if err := json.Unmarshal([]byte(n), reflect.New(want).Interface()); err != nil {
			errs.Add(path, Text(n.String()), "a whole number that fits "+want.Kind().String())
		}
	}
}

// YAML reads some strings without quotes as numbers or booleans.
func stringAllowed(value any) string {
	switch value.(type) {
	case bool, json.Number:
		return "a string; put it in quotes"
	default:
		return "a string"
	}
}

// KindOf names the kind of a value, with the value itself if it is short.
func KindOf(value any) any {
	switch v := value.(type) {
	case nil:
		return Text("null")
	case map[string]any:
		return Text("a map")
	case []any:
		return Text("a list")
	case json.Number:
		return Text("the number " + v.String())
	default:
		return v
	}
}

// fieldTypes includes the fields of embedded structs, by JSON name.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	types := make(map[string]reflect.Type, t.NumField())
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "":
			maps.Copy(types, fieldTypes(f.Type))
		case name == "":
			types[f.Name] = f.Type
		default:
			types[name] = f.Type
		}
	}
	return types
}

// Names returns the JSON names of a struct's fields, sorted.
func Names[T any]() []string { return fieldNames(reflect.TypeFor[T]()) }

func fieldNames(t reflect.Type) []string { return slices.Sorted(maps.Keys(fieldTypes(t))) }
