package farm

import (
	"runtime"
	"testing"
	"weak"

	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
)

// A controller without changes does not keep the plan of its last pass, with all records that the pass has read.
func TestMemoryKeepsNoPlan(t *testing.T) {
	t.Parallel()
	plan, m := &reconcile.Plan{}, &memory{}
	plan.Status.Desired = 3
	kept := weak.Make(plan)
	m.noteFound(plan.Status)
	plan = nil
	runtime.GC()
	if kept.Value() != nil {
		t.Error("the plan is kept")
	}
	if m.found.Desired != 3 {
		t.Errorf("found %+v", m.found)
	}
}
