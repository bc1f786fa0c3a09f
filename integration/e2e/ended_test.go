package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// drainEnded: pods that run once stay placed on the node where they have ended, also on a drained node and on a lost
// machine, and do not run a second time. A pod that has ended with status 0 counts as converged. A pod that has failed
// does not count as converged, but it stays placed too.
func drainEnded(e *env) {
	e.startConsul("")
	agents, preparers := e.machines(3)
	e.farm("f1", "")
	ran := filepath.Join(e.dir, "ran") // each run writes a line to this file
	if err := os.WriteFile(ran, nil, 0o600); err != nil {
		e.t.Fatal(err)
	}
	if err := os.Chmod(ran, 0o666); err != nil { // pods have users of their own
		e.t.Fatal(err)
	}
	runs := func(want ...string) {
		e.t.Helper()
		data, err := os.ReadFile(ran)
		if got := strings.Fields(string(data)); err != nil || len(got) != len(want) {
			e.t.Fatalf("runs %v, %v; want %v", got, err, want)
		}
	}
	looks := 0
	job := func(name string, status int) string {
		looks++
		return fmt.Sprintf(`name: %s
replicas: 1
node_loss: {after: 1s, unmanaged_after: %dm}
pod:
  version: 1
  id: %s
  launchables:
  - name: work
    artifact: {kind: exec, path: /bin/sh}
    args: ["-c", "echo %s >> %s || exit 9; exit %d"]
    restart: {policy: never}
`, name, 100+looks, name, name, ran, status)
	}
	at := func(id string) string { return e.placements(id)["main.0"].Value.Node }

	e.rcctl(job("good", 0), "apply", "-f", "-", "--wait", "--timeout", limit.String())
	good := e.rcID("good")
	node := at(good)
	for n := range 3 { // so that the other job ends on the same node
		if name := fmt.Sprintf("n%d", n+1); name != node {
			e.rcctl("", "node", "cordon", name)
		}
	}
	e.rcctl(job("bad", 3), "apply", "-f", "-")
	bad := e.rcID("bad")
	e.within(limit, func() error { return e.endedAs(bad, pod.StateFailed) })
	for n := range 3 {
		if name := fmt.Sprintf("n%d", n+1); name != node {
			e.rcctl("", "node", "uncordon", name)
		}
	}
	runs("good", "bad")
	stay := func(when string) {
		e.t.Helper()
		if at(good) != node || at(bad) != node {
			e.t.Fatalf("%s: good is on %s, bad on %s, and both ended on %s", when, at(good), at(bad), node)
		}
		if err := e.converged(good, 0); err != nil {
			e.t.Fatalf("%s: %v", when, err)
		}
		runs("good", "bad")
	}

	// look changes no pod, but the owner decides anew.
	look := func() {
		e.t.Helper()
		for i, id := range []string{good, bad} {
			e.rcctl(job([]string{"good", "bad"}[i], []int{0, 3}[i]), "apply", "-f", "-")
			e.statusIs(id, func(st *rc.Status) bool { return st.ObservedGeneration == e.generation(id) })
		}
	}

	e.rcctl("", "node", "drain", node, "--wait", "--timeout", limit.String())
	e.rcctl("", "node", "drain", node, "--deadline", "0s", "--force", "--wait", "--timeout", limit.String())
	look()
	stay("drained")
	e.rcctl("", "node", "undrain", node)
	look()
	stay("no longer drained")

	victim := e.nodeNumber(node)
	e.powerOff(victim, agents[victim], preparers[victim])
	for _, id := range []string{good, bad} {
		e.within(2*limit, func() error {
			if p := e.placements(id)["main.0"].Value; p.LostSince == nil || time.Since(*p.LostSince) < 2*time.Second {
				return fmt.Errorf("it is not lost for long enough to be replaced: %+v", p)
			}
			return nil
		})
	}
	look()
	stay("lost")
	agents[victim].startAgain()
	preparers[victim].startAgain()
	e.within(2*limit, func() error {
		return errors.Join(e.endedAs(good, pod.StateEnded), e.endedAs(bad, pod.StateFailed))
	})
	look()
	stay("back")
}

func (e *env) endedAs(id string, state pod.State) error {
	p := e.placements(id)["main.0"].Value
	r, err := e.store.Realities.Get(e.t.Context(), store.Default, p.Node, id, "main.0")
	if err != nil {
		return err
	}
	st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
	if err == nil && (r.Value.State != state || !r.Value.Ended(p.Digest) || st.Value.Lost+st.Value.Unmanaged != 0) {
		err = fmt.Errorf("%+v, status %+v", r.Value, st.Value)
	}
	return err
}
