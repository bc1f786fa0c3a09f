package manifest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// SchemaID names the JSON Schema of this format version. It is an identifier: nothing needs to be found there.
const SchemaID = "urn:rcfarm:manifest:v1"

// node is a JSON Schema, or a part of one.
type node = map[string]any

// Schema returns the JSON Schema (draft 2020-12) of manifests. It is made of the Go types and of the same limits and
// patterns that Validate uses. It accepts every valid manifest; Validate knows rules that a schema cannot express, such
// as names that must be unique or belong to each other.
// Source: https://json-schema.org/draft/2020-12/json-schema-validation
func Schema() ([]byte, error) {
	defs := node{"tree": treeSchema()}
	top := define(defs, reflect.TypeFor[Manifest]())
	doc := node{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SchemaID,
		"title": "rcfarm pod manifest", "$ref": top["$ref"], "$defs": defs,
	}
	data, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	return append(data, '\n'), nil
}

// define returns a reference to the schema of a struct, and puts it and those of its fields into defs.
func define(defs node, t reflect.Type) node {
	name := strings.ToLower(t.Name())
	ref := node{"$ref": "#/$defs/" + name}
	if defs[name] != nil {
		return ref
	}
	properties, required := node{}, []string{}
	object := node{"type": "object", "properties": properties, "additionalProperties": false}
	defs[name] = object
	for f := range t.Fields() {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		property := typeSchema(defs, f.Type)
		maps.Copy(property, constraints[t.Name()+"."+tag])
		if options == "" {
			required = append(required, tag)
		} else {
			property = optional(property, f.Type)
		}
		properties[tag] = property
	}
	if len(required) > 0 {
		object["required"] = required
	}
	maps.Copy(object, constraints[t.Name()])
	return ref
}

// typeSchema returns what a Go type alone says.
func typeSchema(defs node, t reflect.Type) node {
	switch {
	case t == reflect.TypeFor[field.Duration]():
		return node{"type": "string", "pattern": durationText}
	case t == reflect.TypeFor[Millicores](), t == reflect.TypeFor[Bytes]():
		return node{"type": []string{"integer", "string"}, "pattern": quantityText}
	case t == reflect.TypeFor[Config]():
		return node{"type": "object", "additionalProperties": node{"$ref": "#/$defs/tree"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeSchema(defs, t.Elem())
	case reflect.Struct:
		return define(defs, t)
	case reflect.Slice:
		return node{"type": "array", "items": typeSchema(defs, t.Elem())}
	case reflect.Map:
		return node{"type": "object", "additionalProperties": typeSchema(defs, t.Elem())}
	case reflect.String:
		return node{"type": "string"}
	case reflect.Bool:
		return node{"type": "boolean"}
	default:
		return node{"type": "integer"}
	}
}

// optional lets a field be absent in the ways that people write: null for a part, an empty text for a text.
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

// quantityText is what resource.ParseQuantity reads.
const quantityText = `^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$`

// durationText is what field.Duration reads.
const durationText = `^\+?(?:0|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+)$`

// treeSchema is any value of the configuration below its top.
func treeSchema() node {
	self := node{"$ref": "#/$defs/tree"}
	return node{"anyOf": []any{
		node{"type": []string{"string", "number", "boolean", "null"}},
		node{"type": "array", "items": self},
		node{"type": "object", "additionalProperties": self, "not": node{"required": []string{FileKey}}},
		node{
			"type": "object", "required": []string{FileKey}, "additionalProperties": false,
			"properties": node{FileKey: node{"type": "string", "pattern": absolutePath.re.String(), "maxLength": MaxTextBytes}},
		},
	}}
}
