package field_test

import (
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/field"
)

func TestClosest(t *testing.T) {
	t.Parallel()
	known := []string{"apply", "audit", "deploy", "list", "plan", "rollback", "rollout", "rc"}
	for typed, want := range map[string]string{
		"deplyo": "deploy", "deplo": "deploy", "deployy": "deploy", "aply": "apply", "lits": "list",
		"rolout": "rollout", "rc": "rc",
		"": "", "show": "", "remove": "", "x": "", strings.Repeat("a", 1000): "",
	} {
		if got := field.Closest(typed, known); got != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}
