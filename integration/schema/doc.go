// Package schema makes the JSON Schemas (draft 2020-12) of the documents that people write: manifests, controllers and services. They are
// made of the Go types, of the limits and patterns that validation uses, and of the tables of docs/ that say what each field is. They stand in
// docs/*.schema.json, and package docs hands them to rcctl; `make schema` writes them.
//
// A schema accepts every valid document. Validation knows rules that a schema cannot express, such as names that must be unique or belong
// to each other.
// Source: https://json-schema.org/draft/2020-12/json-schema-validation
package schema
