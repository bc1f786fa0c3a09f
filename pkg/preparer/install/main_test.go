package install

import (
	"os"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/tree"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == tree.Arg {
		tree.Exec()
	}
	os.Exit(m.Run())
}
