package field

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
)

// DecodeKnown reads one JSON document as Decode does, but for what the struct does not have: that is ignored, also where a name
// differs from one of the struct's in case alone, which encoding/json would take for it. Null stands for a field that is left out, where it may be and is no number.
func DecodeKnown(data []byte, into any) error {
	if _, err := parse(data); err != nil {
		return err
	}
	var errs Errors
	return decode(known(data, reflect.TypeOf(into).Elem(), "", &errs), into, errs)
}

// known returns a valid document without what a type does not have, and records fields that it has twice. What is not of that type it leaves as it is, for check.
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
		return data // cannot be: it is made of valid documents
	}
	return again
}

// knownFields returns the fields of a map that a struct has. What is no map comes back as it is.
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

// nullable are the fields of a struct for which null says that they are left out.
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
