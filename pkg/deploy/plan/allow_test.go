package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// tripped gives a controller a status with stops that the breaker withholds.
func tripped(c *record.Controller, placed int) {
	c.Status = &rc.Status{Placed: placed, Conditions: []rc.Condition{{Type: rc.BreakerTripped, True: true}}}
}

// If the breaker withholds stops, --allow-mass-stop makes the breaker ignore these stops, even if the document is the
// same. Otherwise nothing is written.
func TestAllowMassStopOfWhatIsWritten(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(svc *record.Service)
		massStop bool
		writes   []string // controllers whose stops the breaker then ignores
	}{
		"withheld":       {func(s *record.Service) { tripped(&s.Controllers[1], 245) }, true, []string{"web-r2"}},
		"not asked for":  {func(s *record.Service) { tripped(&s.Controllers[1], 245) }, false, nil},
		"not withheld":   {func(s *record.Service) { s.Controllers[1].Status = &rc.Status{Placed: 245} }, true, nil},
		"never reported": {func(*record.Service) {}, true, nil},
		"the condition is ended": {func(s *record.Service) {
			tripped(&s.Controllers[1], 245)
			s.Controllers[1].Status.Conditions[0].True = false
		}, true, nil},
		"allowed already": {func(s *record.Service) {
			tripped(&s.Controllers[1], 245)
			s.Controllers[1].RC.AllowMassStop = s.Controllers[1].RC.Generation
		}, true, nil},
		"allowed for an earlier change": {func(s *record.Service) {
			tripped(&s.Controllers[1], 245)
			s.Controllers[1].RC.Generation, s.Controllers[1].RC.AllowMassStop = 7, 6
		}, true, []string{"web-r2"}},
		"of a former revision": {
			func(s *record.Service) { tripped(&s.Controllers[0], 20) }, true,
			[]string{"web-r1", "web-r2"},
		},
		"of both, one allowed": {func(s *record.Service) {
			tripped(&s.Controllers[0], 20)
			tripped(&s.Controllers[1], 245)
			s.Controllers[1].RC.AllowMassStop = s.Controllers[1].RC.Generation
		}, true, []string{"web-r1"}},
		"of a former revision, and the one in effect has no pod too many": {func(s *record.Service) {
			tripped(&s.Controllers[0], 20)
			s.Controllers[1].Status = &rc.Status{Placed: s.Controllers[1].RC.Desired()}
		}, true, []string{"web-r1", "web-r2"}},
		"of a former revision, not asked for": {func(s *record.Service) { tripped(&s.Controllers[0], 20) }, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := &cluster{}
			c.deployed(t, sample(t))
			c.deployed(t, sample(t, newManifest))
			c.svc.Controllers[0].RC.AllowMassStop = 0 // the permission was only for its rollout
			tt.change(c.svc)
			was := *c.svc
			before := len(c.commits)
			resolved, err := (&plan.ServiceSpecResolver{}).Resolve(t.Context(), sample(t, newManifest))
			if err != nil {
				t.Fatal(err)
			}
			strategy := rolling()
			strategy.MassStop = tt.massStop
			p, err := plan.NewDeployment(c, *resolved, strategy).Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if p.Empty() != (tt.writes == nil) || len(c.commits)-before != min(1, len(tt.writes)) {
				t.Fatalf("%v, %d commits", linesOf(p), len(c.commits)-before)
			}
			if tt.writes == nil {
				return
			}
			d := c.commits[before]
			if len(d.Change) != len(tt.writes) || d.Rollout != nil || len(d.Create) != 0 || len(d.Forget) != 0 ||
				d.Deployed.Revision != was.Deployed.Revision ||
				d.Entry.Outcome != was.History[1].Outcome || d.Entry.Rollout != was.History[1].Rollout {
				t.Errorf("%+v", d)
			}
			for i, r := range d.Change {
				if of := was.Controller(r.ID); r.Name != tt.writes[i] || r.AllowMassStop != r.Generation ||
					r.Generation != of.RC.Generation+1 || r.Desired() != of.RC.Desired() {
					t.Errorf("%+v", r)
				}
			}
			lines := linesOf(p)
			if !strings.Contains(lines[0],
				strings.Join(tt.writes, ", ")+"; what it withholds stops after rcctl farm resume") {
				t.Error(lines)
			}
			for _, name := range tt.writes {
				at := slices.IndexFunc(was.Controllers, func(c record.Controller) bool { return c.RC.Name == name })
				placed := 0
				if st := was.Controllers[at].Status; st != nil {
					placed = st.Placed
				}
				more := placed - was.Controllers[at].RC.Desired()
				if slices.Contains(lines, fmt.Sprintf("  - stop %d pods of %s", more, name)) != (more > 0) {
					t.Errorf("%d pods more of %s in %q", more, name, lines)
				}
			}
		})
	}
}

// A rollout replaces a former revision that still asks for pods, even if the breaker withholds stops.
func TestAllowMassStopOfAGivenUpRollout(t *testing.T) {
	c := &cluster{}
	c.deployed(t, sample(t))
	c.deployed(t, sample(t, newManifest))
	tripped(&c.svc.Controllers[0], 20)
	c.svc.Controllers[0].RC.AllowMassStop = 0
	c.svc.Controllers[0].RC.ReplicaGroups = []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: new(1)}}
	p, err := c.planOf(t, sample(t, newManifest), func(s *plan.ServicePlanner) { s.MassStop = true })
	if err != nil || len(linesOf(p)) < 2 {
		t.Error(linesOf(p), err)
	}
}
