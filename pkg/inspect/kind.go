package inspect

import (
	"encoding/json"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// DocumentKind is what a document describes.
type DocumentKind string

// The kinds.
const (
	ManifestDocument DocumentKind = "manifest"
	RCDocumentKind   DocumentKind = "rc"
	ServiceDocument  DocumentKind = "service"
)

// KindsOf returns the kinds with most fields of a document. There may be two, because a controller and a service have
// most fields in common.
func KindsOf(converted []byte) []DocumentKind {
	var top map[string]json.RawMessage
	if json.Unmarshal(converted, &top) != nil {
		return []DocumentKind{ManifestDocument}
	}
	most, kinds := 0, []DocumentKind{ManifestDocument}
	for _, kind := range []struct {
		DocumentKind
		fields []string
	}{
		{ManifestDocument, field.Names[manifest.Manifest]()},
		{RCDocumentKind, field.Names[shownRC]()},
		{ServiceDocument, field.Names[record.ServiceSpec]()},
	} {
		known := 0
		for name := range top {
			if slices.Contains(kind.fields, name) {
				known++
			}
		}
		switch {
		case known > most:
			most, kinds = known, []DocumentKind{kind.DocumentKind}
		case known == most && known > 0:
			kinds = append(kinds, kind.DocumentKind)
		}
	}
	return kinds
}
