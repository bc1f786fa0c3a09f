package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

type podPlacement = pod.Placement

// converged: the owner must report the newest generation as converged, with n available replicas.
func (e *env) converged(rcID string, n int) error {
	rec, err := e.store.RCs.Get(e.t.Context(), store.Consistent, rcID)
	if err != nil {
		return err
	}
	st, err := e.store.Statuses.Get(e.t.Context(), store.Default, rcID)
	if err != nil {
		return err
	}
	if st.Value.ObservedGeneration != rec.Value.Generation || !st.Value.Is(rc.Converged) || st.Value.Available != n {
		return fmt.Errorf("generation %d, status %+v", rec.Value.Generation, st.Value)
	}
	return nil
}

func (e *env) put(path string, body []byte) []byte { return e.request(http.MethodPut, path, body) }

func (e *env) request(method, path string, body []byte) []byte {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), method, "http://"+e.consul.Addr+path, bytes.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("X-Consul-Token", e.token)
	resp, err := (&http.Client{Timeout: limit}).Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		e.t.Fatalf("%s %s: status %d, %v: %s", method, path, resp.StatusCode, err, answer)
	}
	return answer
}

func (e *env) saved() []consul.Pair {
	e.t.Helper()
	pairs, err := e.client.List(e.t.Context(), store.DefaultPrefix, consul.Consistent)
	if err != nil {
		e.t.Fatal(err)
	}
	return pairs
}

func (e *env) writeBack(pairs []consul.Pair, parts ...string) {
	e.t.Helper()
	n := 0
	for _, p := range pairs {
		for _, part := range parts {
			if !strings.HasPrefix(p.Key, store.DefaultPrefix+part) || strings.HasSuffix(p.Key, "/") {
				continue
			}
			if _, err := e.client.Commit(e.t.Context(), []consul.Op{consul.Set(p.Key, p.Value)}); err != nil {
				e.t.Fatal(err)
			}
			n++
		}
	}
	if n == 0 {
		e.t.Fatalf("nothing was saved below %v", parts)
	}
}

// wipe: the whole prefix is deleted while pods run. Every pod keeps its pid. After the controllers are back, with or
// without placements, all pods are adopted. No pod gets a second copy or restarts.
func wipe(e *env) {
	e.startConsul("")
	for n := range 3 {
		e.preparer(n + 1)
	}
	e.farm("f1", "")
	e.applied(e.hello(3, nil))
	id := e.rcID("hello")
	processes, saved := e.processes(), e.saved()

	for _, round := range []string{"placements never come back", "placements come back later"} {
		if _, err := e.client.Commit(e.t.Context(), []consul.Op{consul.DeleteTree(store.DefaultPrefix)}); err != nil {
			e.t.Fatal(err)
		}
		e.within(limit, func() error {
			orphans := 0
			for _, n := range e.nodes() {
				orphans += n.Value.OrphanCount()
			}
			if orphans != 3 {
				return fmt.Errorf("the nodes report %d orphans, want 3", orphans)
			}
			return nil
		})
		e.sameProcesses(processes, round+": after the wipe")
		e.writeBack(saved, "rcs/", "names/", "manifests/")
		e.within(limit, func() error { return e.adopted(id, 3) })
		if round == "placements come back later" {
			e.writeBack(saved, "pods/", "intent/", "bells/")
			// The saved placements are from before the adoption. If the generation changed before the second adoption,
			// the pods would be adopted at the new generation. Until then, nodes and status may show the first
			// adoption.
			e.within(limit, func() error { return e.adopted(id, 3) })
		}
		e.within(limit, func() error {
			for _, n := range e.nodes() {
				if n.Value.OrphanCount() > 0 {
					return fmt.Errorf("%s still has orphans", n.Value.Name)
				}
			}
			return e.converged(id, 3)
		})
		e.sameProcesses(processes, round+": after the records came back")
		e.oneCopyEach()
	}
	e.applied(e.hello(2, nil)) // the controller can be changed again in the usual way
}

func (e *env) adopted(id string, n int) error {
	placed := e.placements(id)
	if len(placed) != n {
		return fmt.Errorf("%d placements, want %d", len(placed), n)
	}
	for key, p := range placed {
		if p.Value.AdoptedAtGeneration == 0 {
			return fmt.Errorf("%s is placed but not adopted", key)
		}
	}
	return nil
}

// restore: an older state of Consul is restored while pods run. No pod stops or gets a second copy. The farm sees the
// restored state long before its standing queries end by themselves, after five minutes.
func restore(e *env) {
	e.startConsul("")
	for n := range 5 {
		e.preparer(n + 1)
	}
	e.farm("f1", "")
	e.applied(e.hello(2, map[string]string{"HELLO_VERSION": "1"}))
	id := e.rcID("hello")
	snapshot := e.request(http.MethodGet, "/v1/snapshot", nil)
	e.applied(e.hello(4, map[string]string{"HELLO_VERSION": "2"}))
	processes := e.processes()
	schema, err := e.store.EnsureSchema(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}

	e.put("/v1/snapshot", snapshot)
	restored := time.Now()
	e.within(limit/4, func() error {
		now, err := e.store.EnsureSchema(e.t.Context())
		if err == nil && now.Value.Epoch <= schema.Value.Epoch {
			err = errors.New("the farm has not renewed the epoch")
		}
		return err
	})
	e.t.Logf("the farm saw the restored state after %s", time.Since(restored).Round(time.Millisecond))
	e.within(limit, func() error { return e.adopted(id, 4) })
	e.t.Logf("all pods were adopted after %s", time.Since(restored).Round(time.Millisecond))
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && (!st.Value.Is(rc.Regressed) || st.Value.Available != 4) {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return err
	})
	e.sameProcesses(processes, "after the restore")
	e.oneCopyEach()

	// It is carried out even if the restored record is equal to the document.
	for _, replicas := range []int{2, 3} {
		e.applied(e.hello(replicas, map[string]string{"HELLO_VERSION": strconv.Itoa(replicas - 1)}))
		if n := len(e.processes()); n != replicas {
			e.t.Errorf("%d processes, want %d", n, replicas)
		}
	}
}

// restoreScale: an older state is restored after only a scaling. Some pods are in the same state as in the restored
// store, and other pods are in a later state. No pod is stopped because of other pods.
func restoreScale(e *env) {
	e.startConsul("")
	for n := range 5 {
		e.preparer(n + 1)
	}
	e.farm("f1", "")
	e.applied(e.hello(2, nil))
	id := e.rcID("hello")
	snapshot := e.request(http.MethodGet, "/v1/snapshot", nil)
	e.applied(e.hello(4, nil))
	processes := e.processes()
	e.put("/v1/snapshot", snapshot)
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && (len(e.placements(id)) != 4 || st.Value.Available != 4 || st.Value.Is(rc.Holding)) {
			err = fmt.Errorf("%d placements, status %+v", len(e.placements(id)), st.Value)
		}
		return err
	})
	bumped, err := e.store.RCs.Get(e.t.Context(), store.Consistent, id)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.store.Ring(e.t.Context(), bumped.Value.ID); err != nil {
		e.t.Fatal(err)
	}
	e.within(limit, func() error {
		if n := strings.Count(e.log("f1"), "every living node has reported"); n < 2 {
			return fmt.Errorf("the nodes were synced %d times", n)
		}
		return nil
	})
	e.sameProcesses(processes, "after the restore")
	e.applied(e.hello(3, nil))
	e.oneCopyEach()
}

// changeManifest (R6): a new manifest is rolled out in place, one pod at a time, and never below the minimum. The first
// failure stops the rollout. With a corrected manifest, the rollout continues.
func changeManifest(e *env) {
	e.startConsul("")
	for n := range 3 {
		e.preparer(n + 1)
	}
	e.farm("f1", "")
	version := func(v string) map[string]string { return map[string]string{"HELLO_VERSION": v} }
	e.applied(e.hello(3, version("1")))
	id := e.rcID("hello")
	first := e.processes()

	e.apply(e.hello(3, version("2")))
	least := e.leastAvailable(id, func() error { return e.converged(id, 3) })
	e.t.Logf("at least %d of 3 replicas were available while version 2 was rolled out", least)
	if least < 2 {
		e.t.Errorf("%d replicas were available at one time, the minimum is 2", least)
	}
	second := e.processes()
	for key, pid := range second {
		if first[key] == 0 || first[key] == pid {
			e.t.Errorf("%s was not upgraded in place: pid %d, before %d", key, pid, first[key])
		}
	}

	e.apply(e.hello(3, map[string]string{"HELLO_FAIL": "1"}))
	least = e.leastAvailable(id, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && !st.Value.Is(rc.Blocked) {
			err = fmt.Errorf("not blocked: %+v", st.Value)
		}
		return err
	})
	changed := 0
	for key, pid := range second {
		if e.processes()[key] != pid {
			changed++
		}
	}
	if least < 2 || changed != 1 {
		e.t.Errorf("the failing manifest reached %d pods and left %d available; want 1 and 2", changed, least)
	}
	if out := e.rcctl("", "rc", "status", "hello"); !strings.Contains(out, "Blocked") {
		e.t.Errorf("rcctl rc status does not say Blocked:\n%s", out)
	}

	e.apply(e.hello(3, version("4")))
	if least := e.leastAvailable(id, func() error { return e.converged(id, 3) }); least < 2 {
		e.t.Errorf("%d replicas were available at one time, the minimum is 2", least)
	}
}

// leastAvailable returns the fewest available pods, by their nodes' reports, until the condition holds.
func (e *env) leastAvailable(rcID string, condition func() error) int {
	e.t.Helper()
	least := 1 << 30
	e.within(2*limit, func() error {
		recs, _, err := e.store.Realities.List(e.t.Context(), store.Default)
		if err != nil {
			return err
		}
		n := 0
		for _, r := range recs {
			if r.Value.RCID == rcID && r.Value.Available {
				n++
			}
		}
		least = min(least, n)
		return condition()
	})
	return least
}

// twoFirstFarms: two farms start on an empty Consul at once. Only one cluster comes into being, and each controller has
// one owner and the pods that it asks for.
func twoFirstFarms(e *env) {
	e.startConsul("")
	e.farm("f1", "")
	e.farm("f2", "")
	for n := range 3 {
		e.preparer(n + 1)
	}
	const rcs = 6
	for i := range rcs {
		h := e.hello(2, nil)
		h.Name, h.Port = fmt.Sprintf("hello-%d", i), 8080+i
		e.apply(h)
	}
	owners := map[string]int{}
	for i := range rcs {
		id := e.rcID(fmt.Sprintf("hello-%d", i))
		e.within(limit, func() error { return e.converged(id, 2) })
		e.within(limit, func() error { // the controller may be on its way from one farm to the other
			owner, _, err := e.owner(id)
			if err == nil {
				owners[owner]++
			}
			return err
		})
	}
	if n := len(e.processes()); n != 2*rcs {
		e.t.Errorf("%d processes, want %d", n, 2*rcs)
	}
	if owners["f1"]+owners["f2"] != rcs {
		e.t.Errorf("the owners are %v", owners)
	}
	schema, err := e.store.EnsureSchema(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	for name, n := range e.nodes() {
		if n.Value.Epoch != schema.Value.Epoch {
			e.t.Errorf("%s has epoch %s, the cluster %s", name, n.Value.Epoch, schema.Value.Epoch)
		}
	}
	e.oneCopyEach()
}
