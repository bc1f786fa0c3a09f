// Package docs holds those files of the documentation that programs print: the JSON Schemas of documents.
package docs

import _ "embed" // the schemas

// The schemas, as integration/schema makes them.
var (
	//go:embed manifest.schema.json
	ManifestSchema string
	//go:embed controller.schema.json
	ControllerSchema string
	//go:embed service.schema.json
	ServiceSchema string
)
