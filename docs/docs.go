// Package docs holds those pages of the documentation whose tables say what the fields of documents are, for the JSON Schemas of these.
package docs

import _ "embed" // the pages

// The pages, in Markdown.
var (
	//go:embed manifest.md
	Manifest string
	//go:embed controller.md
	Controller string
	//go:embed deploying.md
	Deploying string
)
