package preparer

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

func TestNewNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Host: install.Host{Dir: "relative"}})
	if err == nil {
		t.Fatal("an empty configuration was accepted")
	}
	for _, field := range []string{"node.name", "node.address", "dir", "store", "artifacts", "runtime", "services", "log"} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}
