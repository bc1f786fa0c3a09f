package rc_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Every type has one row in the table, with all texts or none.
func TestKinds(t *testing.T) {
	source, err := os.ReadFile("conditions.go")
	if err != nil {
		t.Fatal(err)
	}
	var types, rows []string
	for _, m := range regexp.MustCompile(`(?m)ConditionType += "([A-Za-z]+)"`).FindAllSubmatch(source, -1) {
		types = append(types, string(m[1]))
	}
	for _, k := range rc.Kinds {
		rows = append(rows, string(k.Type))
		if (k.What == "") != (k.Next == "") {
			t.Errorf("%s: what it is without what helps, or what helps alone", k.Type)
		}
		if k.Urgency == 0 && (k.After != 0 || k.Severity == rc.NoCondition) {
			t.Errorf("%s has no urgency, and is an alert", k.Type)
		}
	}
	slices.Sort(types)
	slices.Sort(rows)
	if diff := cmp.Diff(types, rows); diff != "" {
		t.Errorf("constants are -, the table has +:\n%s", diff)
	}
}
