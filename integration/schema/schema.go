package schema

import (
	"encoding/json"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

type node = map[string]any

type maker struct {
	rules map[string]map[string]node // by the path of a package, then by struct and field, or struct alone
	types map[reflect.Type]node      // of types that have their own form in JSON
	texts texts
	defs  node
	names map[reflect.Type]string   // of the types that are defined already
	more  map[reflect.Type][]string // fields that a type does not have, and that are ignored
}

func (m *maker) encode(id, title string, t reflect.Type) (string, error) {
	m.names = map[reflect.Type]string{}
	top := m.define(t, "")
	doc := node{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": id, "title": title,
		"$ref": top["$ref"], "$defs": m.defs,
	}
	data, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return "", err
	}
	return string(data) + "\n", nil
}

// define adds the schema of a struct to the definitions, and returns a reference. at is the struct's first place in the
// document, where the descriptions of its fields are looked up.
func (m *maker) define(t reflect.Type, at string) node {
	if name, is := m.names[t]; is {
		return node{"$ref": "#/$defs/" + name}
	}
	name := strings.ToLower(t.Name())
	if m.defs[name] != nil { // two packages have a type with this name
		name = path.Base(t.PkgPath()) + "." + name
	}
	m.names[t] = name
	properties, required := node{}, []string{}
	object := node{"type": "object", "properties": properties, "additionalProperties": false}
	m.defs[name] = object
	rules := m.rules[t.PkgPath()]
	for f := range t.Fields() {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		below := strings.TrimPrefix(at+"."+tag, ".")
		property := m.typeSchema(f.Type, below)
		maps.Copy(property, rules[t.Name()+"."+tag])
		if options == "" {
			required = append(required, tag)
		} else {
			property = optional(property, f.Type)
		}
		if text := m.texts.of(below); text != "" {
			property["description"] = text
		}
		properties[tag] = property
	}
	for _, name := range m.more[t] {
		properties[name] = node{"description": "Set by rcfarm. Ignored in a document"}
	}
	if len(required) > 0 {
		object["required"] = required
	}
	maps.Copy(object, rules[t.Name()])
	return node{"$ref": "#/$defs/" + name}
}

func (m *maker) typeSchema(t reflect.Type, at string) node {
	if own := m.types[t]; own != nil {
		return maps.Clone(own)
	}
	if t == reflect.TypeFor[field.Duration]() {
		return node{"type": "string", "pattern": durationText}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return m.typeSchema(t.Elem(), at)
	case reflect.Struct:
		return m.define(t, at)
	case reflect.Slice:
		return node{"type": "array", "items": m.typeSchema(t.Elem(), at+"[]")}
	case reflect.Map:
		return node{"type": "object", "additionalProperties": m.typeSchema(t.Elem(), at)}
	case reflect.String:
		return node{"type": "string"}
	case reflect.Bool:
		return node{"type": "boolean"}
	default:
		return node{"type": "integer"}
	}
}

// optional also accepts a null object and an empty text, with which people write that a field is absent.
func optional(s node, t reflect.Type) node {
	if t.Kind() == reflect.Pointer {
		return node{"anyOf": []any{s, node{"type": "null"}}}
	}
	if t.Kind() != reflect.String {
		return s
	}
	if values, ok := s["enum"].([]string); ok {
		s["enum"] = append(slices.Clone(values), "")
	}
	if text, ok := s["pattern"].(string); ok {
		s["pattern"] = "^$|" + text
	}
	return s
}

// durationText matches what field.Duration reads.
const durationText = `^\+?(?:0|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)$`
