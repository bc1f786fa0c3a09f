package inspect

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func TestStateOf(t *testing.T) {
	all := []store.Member{{ID: "f"}}
	status := func(generation int64, conds ...rc.ConditionType) *rc.Status {
		st := &rc.Status{ObservedGeneration: generation}
		for _, c := range conds {
			st.Conditions = append(st.Conditions, rc.Condition{Type: c, True: true})
		}
		return st
	}
	now := time.Now()
	for _, tt := range []struct {
		rc    rc.RC
		st    *rc.Status
		farms []store.Member
		want  string
	}{
		{rc.RC{Generation: 2}, nil, all, "Pending"},
		{rc.RC{Generation: 2}, nil, nil, "Unclaimed"},
		{rc.RC{Generation: 2}, status(2, rc.Converged), nil, "Unclaimed"},
		{rc.RC{Generation: 2}, status(2, rc.Converged), []store.Member{{RCSelector: "team=a"}}, "Unclaimed"},
		{rc.RC{Generation: 2}, status(2, rc.Converged), []store.Member{{RCSelector: "broken in"}}, "Unclaimed"},
		{
			rc.RC{Generation: 2, Labels: map[string]string{"team": "a"}},
			status(2, rc.Converged),
			[]store.Member{{RCSelector: "team=a"}},
			"Converged",
		},
		{
			rc.RC{ID: "web", Generation: 2},
			status(2, rc.Converged),
			[]store.Member{{RCID: "web", RCSelector: "a,!a"}},
			"Converged",
		},
		{rc.RC{ID: "web", Generation: 2}, status(2, rc.Converged), []store.Member{{RCID: "other"}}, "Unclaimed"},
		{rc.RC{Generation: 2}, status(2, rc.InsufficientNodes, rc.SchedulerFailing), all, "SchedulerFailing"},
		{rc.RC{Generation: 2}, status(1, rc.Converged), all, "Pending"},
		{rc.RC{Generation: 2}, status(2), all, "Progressing"},
		{rc.RC{Generation: 2}, status(2, rc.Converged, rc.Regressed), all, "Regressed"},
		{rc.RC{Generation: 2}, status(2, rc.InsufficientNodes, rc.Blocked), all, "Blocked"},
		{rc.RC{Generation: 2}, status(2, rc.Converged, rc.BooksDiffer), all, "BooksDiffer"},
		{rc.RC{Generation: 2}, status(2, rc.Holding, rc.BooksDiffer, rc.NodeLost), all, "NodeLost"},
		{rc.RC{Generation: 2, Disabled: true}, status(2, rc.Converged), nil, "Disabled"},
		{rc.RC{Generation: 2, Disabled: true, DeletedAt: &now}, status(2), nil, "Deleting"},
	} {
		if got := StateOf(&tt.rc, tt.st, tt.farms); got != tt.want {
			var conditions []rc.Condition
			if tt.st != nil {
				conditions = tt.st.Conditions
			}
			t.Errorf("conditions %+v, rc %+v, farms %+v: got %s, want %s", conditions, tt.rc, tt.farms, got, tt.want)
		}
	}
}

func TestAge(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 59 * time.Second: "59s", 119 * time.Second: "119s", 2 * time.Minute: "2m",
		47 * time.Hour: "47h", 50 * time.Hour: "2d",
	} {
		if got := Age(now, now.Add(-d)); got != want {
			t.Errorf("%s: got %s, want %s", d, got, want)
		}
	}
}
