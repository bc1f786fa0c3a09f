package install

import (
	"os"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/tree"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case oneshot.Arg:
			oneshot.Exec()
		case tree.Arg:
			tree.Exec()
		}
	}
	os.Exit(m.Run())
}
