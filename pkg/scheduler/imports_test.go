package scheduler_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Who writes a scheduler takes on nothing but nouns and selectors of labels: no HTTP, no queue, no metrics, no Consul.
func TestImportsAreFew(t *testing.T) {
	t.Parallel()
	const module = "github.com/rcfarm/rcfarm/"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if .Module}}{{.ImportPath}}{{else if eq .ImportPath `net/http`}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := []string{"pkg/field", "pkg/manifest", "pkg/node", "pkg/pod", "pkg/scheduler"}
	theirs := []string{
		"k8s.io/apimachinery/", "k8s.io/klog/", "k8s.io/utils/", "github.com/go-logr/logr", // of the selectors
		"gopkg.in/inf.v0", "github.com/fxamacker/cbor/", "github.com/x448/float16", "sigs.k8s.io/json", // of the quantities in a manifest
	}
	found := strings.Fields(string(out))
	for _, path := range found {
		own, mine := strings.CutPrefix(path, module)
		if mine && slices.Contains(ours, own) || slices.ContainsFunc(theirs, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
			continue
		}
		t.Errorf("pkg/scheduler depends on %s", path)
	}
	if len(found) < len(ours) {
		t.Errorf("go list knows %v only", found)
	}
}
