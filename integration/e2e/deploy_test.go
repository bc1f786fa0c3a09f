package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

type web struct {
	replicas int
	version  string
	update   string            // fields of update, such as "step: 1"
	fields   string            // further lines of the document
	env      map[string]string // besides the version
	port     int               // zero: a dynamic port
	sha256   string            // of the artifact; empty: the right one
}

func (e *env) document(w web) string {
	e.t.Helper()
	h := e.hello(w.replicas, map[string]string{"HELLO_VERSION": w.version})
	h.Name, h.Port = "web", w.port
	maps.Copy(h.Env, w.env)
	if w.sha256 != "" {
		h.Artifact.SHA256 = w.sha256
	}
	return strings.Replace(servedSpec(h), "\npod:\n", fmt.Sprintf("\nupdate: {%s}\n%spod:\n", w.update, w.fields), 1)
}

// site starts nodes (n1, ...) and farms (f1, ...), and returns when all nodes are alive.
func (e *env) site(nodes, farms int) (all map[string]*daemon) {
	e.t.Helper()
	e.startConsul("")
	for n := range nodes {
		e.preparer(n + 1)
	}
	all = map[string]*daemon{}
	for n := range farms {
		id := fmt.Sprintf("f%d", n+1)
		all[id] = e.farm(id, "")
	}
	e.within(limit, func() error {
		living := 0
		for _, rec := range e.nodes() {
			if rec.Session != "" && rec.Value.Epoch != "" {
				living++
			}
		}
		if living != nodes {
			return fmt.Errorf("%d nodes have seen this cluster, want %d", living, nodes)
		}
		return nil
	})
	return all
}

func (e *env) deployed(w web, flags ...string) {
	e.t.Helper()
	e.rcctl(e.document(w), append([]string{"deploy", "-f", "-", "--yes"}, flags...)...)
	e.runs(map[string]int{w.version: w.replicas})
}

func (e *env) detached(w web, flags ...string) {
	e.t.Helper()
	e.rcctl(e.document(w), append([]string{"deploy", "-f", "-", "--yes", "--detach"}, flags...)...)
}

func (e *env) fails(w web, want ...string) {
	e.t.Helper()
	out, err := e.tryRcctl(e.document(w), "deploy", "-f", "-", "--yes")
	for _, text := range want {
		if !strings.Contains(out, text) {
			e.t.Errorf("rcctl deploy does not say %q", text)
		}
	}
	if err == nil || e.t.Failed() {
		e.t.Fatalf("rcctl deploy: %v\n%s", err, out)
	}
}

func (e *env) rollout() *rollout.Record {
	e.t.Helper()
	var r *rollout.Record
	// Consul may refuse the connection, because it still counts connections of killed processes.
	e.within(limit, func() error {
		rec, err := e.store.Deployments.RolloutOf(e.t.Context(), "web")
		switch {
		case errors.Is(err, store.ErrNotFound):
			r, err = nil, nil
		case err == nil:
			r = &rec.Value
		}
		return err
	})
	return r
}

// awaitRollout waits until is returns true for the rollout under way; nil: there is none.
func (e *env) awaitRollout(want string, is func(r *rollout.Record) bool) *rollout.Record {
	e.t.Helper()
	var r *rollout.Record
	e.within(limit, func() error {
		if r = e.rollout(); !is(r) {
			return fmt.Errorf("want a rollout that %s, it is %+v", want, r)
		}
		return nil
	})
	return r
}

func (e *env) awaitState(state rollout.State) *rollout.Record {
	e.t.Helper()
	return e.awaitRollout("is "+string(state), func(r *rollout.Record) bool { return r != nil && r.State == state })
}

func (e *env) awaitEnd() {
	e.t.Helper()
	e.awaitRollout("has ended", func(r *rollout.Record) bool { return r == nil })
}

func (e *env) versions() map[string]int {
	e.t.Helper()
	found := map[string]int{}
	for _, pid := range e.processes() {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue // it has ended
		}
		for v := range strings.SplitSeq(string(data), "\x00") {
			if version, is := strings.CutPrefix(v, "HELLO_VERSION="); is {
				found[version]++
			}
		}
	}
	return found
}

func (e *env) runs(want map[string]int) {
	e.t.Helper()
	e.within(limit, func() error {
		if got := e.versions(); !maps.Equal(got, want) {
			return fmt.Errorf("processes of versions %v, want %v", got, want)
		}
		return nil
	})
}

func (e *env) mustSay(want []string, args ...string) {
	e.t.Helper()
	out := e.rcctl("", args...)
	for _, text := range want {
		if !strings.Contains(out, text) {
			e.t.Errorf("rcctl %s does not say %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
}

func (e *env) pids(version string) (pids []int) {
	e.t.Helper()
	for _, pid := range e.processes() {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if slices.Contains(strings.Split(string(data), "\x00"), "HELLO_VERSION="+version) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
