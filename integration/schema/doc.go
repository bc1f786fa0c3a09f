// Package schema makes the JSON Schemas (draft 2020-12) of manifests, controllers and services. It derives them from
// the Go types, from the limits and patterns that validation uses, and from the tables of docs/ that explain each
// field. `make schema` writes the schemas to docs/*.schema.json.
//
// A schema accepts every valid document. Validation knows rules that a schema cannot express, for example that names
// must be unique. Source: https://json-schema.org/draft/2020-12/json-schema-validation
package schema
