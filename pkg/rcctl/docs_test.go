package rcctl

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// The document in the help of apply is valid.
func TestDocumentOfTheHelpIsValid(t *testing.T) {
	_, text, _ := strings.Cut(applyCommand().Description, "\n\nA document, ")
	_, text, _ = strings.Cut(text, ":\n")
	data, err := document.ToJSON([]byte(strings.Replace(text, "64 hex digits", strings.Repeat("a", 64), 1)), "a controller")
	if err != nil {
		t.Fatal(err)
	}
	if spec, err := rc.DecodeSpec(data); err != nil || spec.MinAvailable == nil {
		t.Errorf("%v in\n%s", err, text)
	}
}
