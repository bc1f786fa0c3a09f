package reconcile_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// A status is small, no matter how much is lost, unreadable or reported by nodes. So the transaction of a pass never
// becomes too large because of it.
func TestAStatusIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		text := func(name string) string {
			piece := rapid.SampledFrom([]string{"n", "<", "\x00", "\xff", "ü", "\n", "\u2028", `"`}).Draw(r, name)
			return strings.Repeat(piece, rapid.SampledFrom([]int{1, 200, 20_000}).Draw(r, name+" times"))
		}
		now := time.Unix(1_700_000_000, 0)
		nodes := rapid.SampledFrom([]int{0, 1, 7, 1000}).Draw(r, "nodes")
		s := &reconcile.Snapshot{
			Now: now, Owner: "f1", RC: rc.RC{
				ID: "web", Name: "web", ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &nodes}},
			},
			Nodes: map[string]*node.View{}, Hold: text("hold"), Breaker: text("breaker"),
		}
		message, name := text("message"), strings.Repeat("n",
			rapid.SampledFrom([]int{1, 230}).Draw(r, "length of names"))
		for i := range nodes {
			id, at := pod.Identity{RCID: "web", Role: "main", Index: i}, fmt.Sprintf("%s-%d", name, i)
			s.Nodes[at] = &node.View{Node: node.Node{Name: at}, MachineLost: rapid.Bool().Draw(r, "gone")}
			s.Pods = append(s.Pods, reconcile.Pod{
				Placement: pod.Placement{Identity: id, Node: at, RunState: pod.Running, Revision: 1}, Index: 1,
				Reality: &pod.Reality{Identity: id, Node: at, Revision: 1, State: pod.StateFailed, Message: message},
			})
			s.Errors = append(s.Errors, message)
		}
		if rapid.Bool().Draw(r, "there is a status") {
			s.Previous = &rc.Status{RCID: "web"}
			for _, rule := range rc.Alerts {
				s.Previous.Conditions = append(s.Previous.Conditions, rc.Condition{
					Type: rule.Type, True: true, Reason: message, Since: now,
				})
				s.Previous.Incidents = append(s.Previous.Incidents, rc.Incident{
					Key: "k", Type: rule.Type, Reason: message, Since: now,
				})
			}
		}
		plan := reconcile.Compute(s)
		for range rapid.IntRange(0, 100).Draw(r, "failures") {
			plan.Fail(message)
		}
		plan.Block(now, message)
		left := []pod.Identity{{RCID: "web", Role: "new"}}
		pods := plan.Facts().Pods
		for i := range pods {
			pods[i].Avoid = []pod.Avoided{
				{Node: name, Since: now, Reason: message}, {Node: name + "2", Since: now, Reason: message},
			}
			left = append(left, pods[i].Identity)
		}
		plan.SetUnplaced(left, message, time.Second)
		plan.BooksDiffer(now, message)
		var due time.Duration
		plan.Status.Incidents, due = alert.Track(alert.Input{Before: s.Previous, After: &plan.Status, Now: now})
		_ = due
		data, err := json.Marshal(plan.Status)
		if err != nil {
			r.Fatal(err)
		}
		if len(data) > rc.MaxStatusBytes {
			r.Fatalf("%d bytes, allowed %d: %.300s", len(data), rc.MaxStatusBytes, data)
		}
	})
}

// A status stays within its limit if all conditions are true, all incidents were raised and have ended, and all
// reasons, names and numbers have their maximum length.
func TestAFullStatusIsBounded(t *testing.T) {
	t.Parallel()
	const many = math.MaxInt32
	now, name, long := time.Unix(1_700_000_000, 123_456_789).UTC(), strings.Repeat("n",
		field.MaxName), strings.Repeat("x", rc.MaxReason+1)
	st := rc.Status{
		RCID: name, ObservedGeneration: math.MaxInt64, Desired: many, Placed: many, Available: many, Stopping: many,
		Lost: many, Unmanaged: many,
		Owner: name, LastError: reconcile.Few(slices.Repeat([]string{long}, 10_000)), Epoch: name, Ghosts: many,
		StoppingLost:       many,
		UnmanagedAvailable: many, Updated: many, UpdatedAvailable: many, StandingBy: many,
		Failing: slices.Repeat([]rc.PodFailure{{
			Pod: name + ".2147483647", Node: name,
			Reason: field.Cut(long, rc.MaxReason), Hopeless: true,
		}}, rc.MaxFailing),
	}
	alone := statusBytes(t, &st)
	for _, k := range rc.Kinds {
		if k.Severity != rc.NoCondition {
			st.Conditions = rc.SetCondition(st.Conditions, k.Type, true, long, now)
		}
	}
	for _, rule := range rc.Alerts {
		st.Incidents = append(st.Incidents, rc.Incident{
			Key: rc.IncidentKey(name, rule.Type, now), Type: rule.Type, Reason: field.Cut(long, rc.MaxReason),
			Since: now, AlertedAt: &now, ResolvedAt: &now,
		})
	}
	if full := statusBytes(t, &st); full > rc.MaxStatusBytes {
		t.Errorf("%d conditions with %d incidents make a status of %d bytes, some %d each; "+
			"allowed are %d: raise rc.MaxStatusBytes (docs/contributing.md)",
			len(st.Conditions), len(st.Incidents), full, (full-alone)/len(st.Incidents), rc.MaxStatusBytes)
	}
}

func statusBytes(t *testing.T, st *rc.Status) int {
	t.Helper()
	data, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	return len(data)
}
