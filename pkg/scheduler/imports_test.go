package scheduler_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The package depends only on packages of records and on label selectors. It does not depend on HTTP, queues, metrics
// or Consul.
func TestImportsAreFew(t *testing.T) {
	t.Parallel()
	const module = "github.com/rcfarm/rcfarm/"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		"{{if .Module}}{{.ImportPath}}{{else if eq .ImportPath `net/http`}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := []string{
		"pkg/field", "pkg/internal/oci/reference", "pkg/manifest", "pkg/node", "pkg/pod", "pkg/scheduler",
	}
	theirs := []string{
		"k8s.io/apimachinery/", "k8s.io/klog/", "k8s.io/utils/", "github.com/go-logr/logr", // for the selectors
		// for the quantities in a manifest
		"gopkg.in/inf.v0", "github.com/fxamacker/cbor/", "github.com/x448/float16", "sigs.k8s.io/json",
	}
	found := strings.Fields(string(out))
	for _, path := range found {
		own, mine := strings.CutPrefix(path, module)
		if mine && slices.Contains(ours, own) ||
			slices.ContainsFunc(theirs, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
			continue
		}
		t.Errorf("pkg/scheduler depends on %s", path)
	}
	if len(found) < len(ours) {
		t.Errorf("go list knows %v only", found)
	}
}
