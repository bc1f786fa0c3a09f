package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// A metric has each value of a list from the start, so no constant may be missing from the list.
func TestListsOfConstantsAreComplete(t *testing.T) {
	t.Parallel()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, typ string
		listed   []string
	}{
		{"pkg/farm/reconcile", "Action", texts(reconcile.AllActions)},
		{"pkg/scheduler", "Reason", texts(scheduler.AllReasons)},
	} {
		files, err := filepath.Glob(filepath.Join(root, c.dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		var source strings.Builder
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(text)
		}
		if found := matches(`(?m)^\s+[A-Z]\w* +`+c.typ+` += "([^"]+)"`, source.String()); len(found) == 0 ||
			!slices.Equal(found, c.listed) {
			t.Errorf("%s: the constants of type %s are %q, the list has %q", c.dir, c.typ, found, c.listed)
		}
	}
}

func texts[T ~string](list []T) []string {
	var all []string
	for _, v := range list {
		all = append(all, string(v))
	}
	slices.Sort(all)
	return all
}
