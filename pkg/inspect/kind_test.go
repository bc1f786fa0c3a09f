package inspect_test

import (
	"slices"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/inspect"
)

func TestKindsOf(t *testing.T) {
	t.Parallel()
	const m, r, s = inspect.ManifestDocument, inspect.RCDocumentKind, inspect.ServiceDocument
	for doc, want := range map[string][]inspect.DocumentKind{
		`[]`: {m},
		`{}`: {m},
		`{"version": 1, "id": "web", "launchables": []}`:                {m},
		`{"version": 1, "id": "web", "launchables": [], "replicas": 1}`: {m},
		`{"name": "web", "replicas": 1, "pod": {}}`:                     {r, s},
		`{"name": "web", "replicas": 1}`:                                {r, s},
		`{"name": "web", "replicas": 1, "pod": {}, "update": {}}`:       {s},
		`{"replicas": 1, "pod": {}, "digests": "never"}`:                {s},
		`{"name": "web", "replicas": 1, "pod": {}, "min_available": 1}`: {r},
		`{"name": "web", "id": "x", "status": null, "manifest": {}}`:    {r},
		`{"nome": "web", "pod": {}}`:                                    {r, s},
	} {
		if got := inspect.KindsOf([]byte(doc)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", doc, got, want)
		}
	}
}
