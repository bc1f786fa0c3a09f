package rcctl

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// aService returns a service whose revisions have these outcomes. If the last outcome is failed, the first revision has
// the pods, else the last.
func aService(outcomes ...rollout.State) *record.Service {
	one := 1
	svc := &record.Service{}
	for i, outcome := range outcomes {
		id := string(rune('a' + i))
		svc.History = append(svc.History,
			record.Entry{
				Service: "web", Revision: int64(i + 1), RC: id,
				Ending: record.Ending{Rollout: "r" + id, Outcome: outcome},
			})
		svc.Controllers = append(svc.Controllers, record.Controller{RC: rc.RC{ID: id}})
		svc.Deployed = record.Deployed{Service: "web", Revision: int64(i + 1), RC: id}
	}
	serves := 0
	if last := len(outcomes) - 1; outcomes[last] != rollout.Failed {
		serves = last
	}
	svc.Controllers[serves].RC.ReplicaGroups = []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &one}}
	return svc
}

// The revision that serves has the star. Going back chooses a revision before it.
func TestRevisionInEffect(t *testing.T) {
	for _, tt := range []struct {
		name     string
		svc      *record.Service
		star, to int64 // to is zero if there is no such revision
	}{
		{"done", aService(rollout.Done, rollout.Done), 2, 1},
		{"only one", aService(rollout.Done), 1, 0},
		{"rolled back", aService(rollout.Done, rollout.Failed), 1, 0},
		{"aborted", aService(rollout.Done, rollout.Aborted), 2, 1},
		{"the first failed", aService(rollout.Failed), 1, 0},
	} {
		for i := range tt.svc.History {
			v := inspect.NewHistoryView(tt.svc, &tt.svc.History[i])
			if v.InEffect != (v.Revision == tt.star) {
				t.Errorf("%s: revision %d is in effect: %t, want revision %d", tt.name, v.Revision, v.InEffect, tt.star)
			}
		}
		e, err := entry(tt.svc, 0)
		if tt.to == 0 && err == nil || tt.to != 0 && (err != nil || e.Revision != tt.to) {
			t.Errorf("%s: back to %+v, %v, want revision %d", tt.name, e, err, tt.to)
		}
	}
}

const serviceDocument = `{"name": "web", "replicas": 2, "update": {"strategy": "resourceutil"}, "pod": {"version": 1, "id": "web", "launchables": [{"name": "server", "args": ["ARG"],
	"artifact": {"kind": "exec", "path": "/bin/true"}}]}}`

// After a rollback all commands are about the revision that serves. Only its document brings the failed revision back.
func TestCommandsAfterARollback(t *testing.T) {
	s, prefix := testConn(t)
	livingNode(t, s)
	must := func(stdin, want string, args ...string) {
		t.Helper()
		if code, out, errs := run(t, prefix, stdin, args...); code != exitDone || !strings.Contains(out, want) {
			t.Errorf("rcctl %s: exit code %d, want %q in:\n%s%s", strings.Join(args, " "), code, want, out, errs)
		}
	}
	document := func(arg string) string { return strings.Replace(serviceDocument, "ARG", arg, 1) }
	must(document("a"), "web-r1", "deploy", "-f", "-", "--yes", "--detach")
	endRollout(t, s, rollout.Done, 2)
	must(document("b"), "web-r2", "deploy", "-f", "-", "--yes", "--detach")
	endRollout(t, s, rollout.Failed, 2, 0)
	must("", "1 *", "history", "web")
	must(document("a"), "up to date, revision 1", "plan", "-f", "-")
	must("", "revision 1 -> document of revision 2", "diff", "web", "--to", "2")
	must("", `"revision": 1`, "service", "list", "-o", "json")
	must("", "2 -> 3", "scale", "web", "3", "--yes", "--detach")
	svc, err := s.Deployments.Service(t.Context(), "web")
	if err != nil || svc.Rollout != nil || svc.Deployed.Revision != 1 || svc.Controllers[0].RC.Desired() != 3 ||
		svc.Controllers[1].RC.Desired() != 0 {
		t.Errorf("after scaling: %+v, %v", svc, err)
	}
}

// endRollout ends the rollout in place of a farm, and gives the revisions these counts.
func endRollout(t *testing.T, s *conn, outcome rollout.State, counts ...int) {
	t.Helper()
	svc, err := s.Deployments.Service(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	keys := s.Keys()
	ops := []consul.Op{consul.Delete(keys.Rollouts.Key(svc.Deployed.ID))}
	set := func(key string, value any) {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, consul.Set(key, data))
	}
	for i, c := range svc.Controllers {
		c.RC.ReplicaGroups = []rc.ReplicaGroup{{Role: rc.DefaultRole, Count: &counts[i]}}
		set(keys.RCs.Key(c.RC.ID), c.RC)
	}
	e := svc.History[len(svc.History)-1]
	e.Outcome = outcome
	set(keys.Deployments.Key("web", "history", strconv.FormatInt(e.Revision, 10)), e)
	if _, err := s.consul.Commit(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
}

// After the breaker has tripped, repeating the command with --allow-mass-stop allows the stops that the breaker
// withholds. If the breaker withholds none, the command writes nothing.
func TestAllowingWhatTheBreakerWithholds(t *testing.T) {
	s, prefix := testConn(t)
	document := strings.Replace(serviceDocument, "ARG", "a", 1)
	must := func(stdin, want string, args ...string) *record.Service {
		t.Helper()
		if code, out, errs := run(t, prefix, stdin, args...); code != exitDone || !strings.Contains(out, want) {
			t.Errorf("rcctl %s: exit code %d, want %q in:\n%s%s", strings.Join(args, " "), code, want, out, errs)
		}
		svc, err := s.Deployments.Service(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		return svc
	}
	must(document, "web-r1", "deploy", "-f", "-", "--yes", "--detach")
	endRollout(t, s, rollout.Done, 2)
	for _, tt := range []struct {
		stdin string
		args  []string
	}{
		{document, []string{"deploy", "-f", "-", "--yes", "--detach", "--allow-mass-stop"}},
		{"", []string{"scale", "web", "2", "--yes", "--detach", "--allow-mass-stop"}},
	} {
		withheld(t, s, false, 0)
		was := must(tt.stdin, "up to date", tt.args...)
		if r := was.Controllers[0].RC; r.AllowMassStop == r.Generation {
			t.Errorf("%v: the breaker withholds nothing, and passes %+v", tt.args, r)
		}
		withheld(t, s, true, 0)
		now := must(tt.stdin, "let the mass-stop breaker pass web-r1; what it withholds stops after rcctl farm resume",
			tt.args...)
		r := now.Controllers[0].RC
		if r.AllowMassStop != r.Generation || r.Generation != was.Controllers[0].RC.Generation+1 || r.Desired() != 2 {
			t.Errorf("%v: %+v", tt.args, r)
		}
		if again := must(tt.stdin, "up to date", tt.args...); again.Controllers[0].RC.Generation != r.Generation {
			t.Errorf("%v: it is written again: %+v", tt.args, again.Controllers[0].RC)
		}
		withheld(t, s, false, 1) // by another change, which is not allowed
	}
}

// withheld writes a status of web's controller. With the argument is, the breaker withholds stops in this status.
// withheld also adds changes to the controller's generation, as if so many changes without the permission were made.
func withheld(t *testing.T, s *conn, is bool, changes int64) {
	t.Helper()
	svc, err := s.Deployments.Service(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	r := svc.Controllers[0].RC
	r.Generation += changes
	st := rc.Status{RCID: r.ID, Placed: 245, Conditions: []rc.Condition{{Type: rc.BreakerTripped, True: is}}}
	var ops []consul.Op
	for key, value := range map[string]any{s.Keys().Statuses.Key(r.ID): st, s.Keys().RCs.Key(r.ID): r} {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, consul.Set(key, data))
	}
	if _, err := s.consul.Commit(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
}
