package field

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
)

// DecodeKnown is Decode, but ignores fields that the struct does not have, even if encoding/json would accept the name
// in another case. Null means a missing field, if it has omitempty and is a pointer, slice, map or string.
func DecodeKnown(data []byte, into any) error {
	if _, err := parse(data); err != nil {
		return err
	}
	var errs Errors
	return decode(known(data, reflect.TypeOf(into).Elem(), "", &errs), into, errs)
}

// known removes the fields that a type does not have, and adds fields that occur twice to errs. It keeps values of a
// wrong type for check.
func known(data json.RawMessage, want reflect.Type, path string, errs *Errors) json.RawMessage {
	if reflect.PointerTo(want).Implements(unmarshaler) {
		return data
	}
	var kept any
	switch want.Kind() {
	case reflect.Pointer:
		return known(data, want.Elem(), path, errs)
	case reflect.Struct:
		kept = knownFields(data, want, path, errs)
	case reflect.Slice:
		var items []json.RawMessage
		if json.Unmarshal(data, &items) != nil || items == nil {
			return data
		}
		for i := range items {
			items[i] = known(items[i], want.Elem(), fmt.Sprintf("%s[%d]", path, i), errs)
		}
		kept = items
	default:
		return data
	}
	again, err := json.Marshal(kept)
	if err != nil {
		return data // impossible, because kept consists of valid documents
	}
	return again
}

// If data is not a map, knownFields returns data.
func knownFields(data json.RawMessage, want reflect.Type, path string, errs *Errors) any {
	dec := json.NewDecoder(bytes.NewReader(data))
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		return data
	}
	types, mayLack := fieldTypes(want), nullable(want)
	fields := map[string]json.RawMessage{}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return data
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return data
		}
		key, _ := token.(string)
		t, has := types[key]
		switch {
		case !has:
		case seen[key]:
			errs.Add(Join(path, key), Text("a second time"), "each key once")
		case mayLack[key] && string(value) == "null":
		default:
			fields[key] = known(value, t, Join(path, key), errs)
		}
		seen[key] = true
	}
	return fields
}

// nullable returns the fields of a struct for which null means missing.
func nullable(t reflect.Type) map[string]bool {
	names := map[string]bool{}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			maps.Copy(names, nullable(f.Type))
			continue
		}
		switch f.Type.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map, reflect.String:
			names[name] = strings.Contains(options, "omitempty")
		default:
		}
	}
	return names
}
