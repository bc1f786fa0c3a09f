package install

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

func TestSpecIDsAreSafeAndNew(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 63)
	id := pod.Identity{RCID: long, Role: long, Index: 1 << 30}
	digest := strings.Repeat("0", 64)
	one, other := SpecID(id, &Installed{Digest: digest, Revision: 1}, long), SpecID(id,
		&Installed{Digest: digest, Revision: 2}, long)
	if one == other || len(one) > maxSpecID {
		t.Errorf("%q and %q", one, other)
	}
}
