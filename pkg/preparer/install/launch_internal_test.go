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

// An image's STOPSIGNAL has several forms. One that nothing here can send is left out.
func TestSignalName(t *testing.T) {
	for text, want := range map[string]string{
		"SIGQUIT": "SIGQUIT", "QUIT": "SIGQUIT", "3": "SIGQUIT", "sigint": "SIGINT", "": "", "SIGRTMIN+3": "", "99": "",
		"-1": "",
	} {
		if got := signalName(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
