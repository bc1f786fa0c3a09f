package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (e *env) owner(rcID string) (farm string, lock consul.Pair, err error) {
	lock, err = e.client.Get(e.t.Context(), e.store.Keys().Locks.Key(rcID), consul.Consistent)
	if err != nil {
		return "", lock, err
	}
	if lock.Session == "" {
		return "", lock, errors.New("nobody owns it")
	}
	_, rest, _ := strings.Cut(string(lock.Value), `"farm":"`)
	farm, _, _ = strings.Cut(rest, `"`)
	return farm, lock, nil
}

// ownedBy waits until the farm owns the controller under another session.
func (e *env) ownedBy(rcID, farm, notSession string, within time.Duration) consul.Pair {
	e.t.Helper()
	var lock consul.Pair
	e.within(within, func() error {
		owner, l, err := e.owner(rcID)
		if err != nil {
			return err
		}
		if owner != farm || l.Session == notSession {
			return fmt.Errorf("owned by %s in session %s", owner, l.Session)
		}
		lock = l
		return nil
	})
	return lock
}

func (e *env) catch(h *delayed) {
	e.t.Helper()
	select {
	case <-h.caught:
	case <-time.After(limit):
		e.t.Fatal("the transaction to be held was never sent")
	}
}

// refused delivers a held transaction, which Consul must refuse.
func (e *env) refused(h *delayed) {
	e.t.Helper()
	close(h.deliver)
	select {
	case status := <-h.status:
		if status != http.StatusConflict {
			e.t.Fatalf("the late transaction was answered with %d, want a refusal (409)", status)
		}
	case <-time.After(limit):
		e.t.Fatal("Consul never answered the late transaction")
	}
}

// pausedOwner: a farm is paused for longer than its session lasts, and another farm takes over. When the first farm
// continues, none of its writes land.
func pausedOwner(e *env) {
	e.startConsul("")
	p := newProxy(e.t, e.consul.Addr)
	for n := range 4 {
		e.preparer(n + 1)
	}
	f1 := e.farm("f1", p.addr, "--ttl", "5s") // f1 must not lose its session before the pause, even on a busy machine
	e.applied(e.hello(1, nil))
	id := e.rcID("hello")
	before := e.ownedBy(id, "f1", "", limit)

	batch := p.delay(e.store.Keys().Pods.Below(id))
	e.rcctl("", "rc", "scale", "hello", "3")
	e.catch(batch)
	e.stop(f1.current().cmd.Process.Pid)
	e.farm("f2", "") // started late, because f1 might hand the controller over after ten seconds beside f2
	e.ownedBy(id, "f2", before.Session, limit)
	e.within(limit, func() error { return e.converged(id, 3) })
	processes, placed := e.processes(), e.placements(id)
	f1.signal(syscall.SIGCONT)
	e.refused(batch)

	// The first farm becomes a member again with a new session, and does not write the controller.
	e.within(limit, func() error {
		pair, err := e.client.Get(e.t.Context(), e.store.Keys().Farms.Key("f1"), consul.Consistent)
		if err == nil && pair.Session == "" {
			err = errors.New("f1 is no member yet")
		}
		return err
	})
	for _, txn := range p.transactions() {
		if strings.Contains(txn.body, before.Session) && strings.Contains(txn.body, fenceVerb) &&
			txn.status == http.StatusOK && e.landedAfter(txn.body, placed) {
			e.t.Errorf("a transaction of the paused owner landed:\n%s", txn.body)
		}
	}
	if owner, _, err := e.owner(id); owner != "f2" {
		e.t.Errorf("the owner is %q, %v; want f2", owner, err)
	}
	e.sameProcesses(processes, "after the paused owner resumed")
	for key, rec := range e.placements(id) {
		if rec.Index != placed[key].Index {
			e.t.Errorf("placement %s was written after the take-over was over", key)
		}
	}
	e.oneCopyEach()
}

func (e *env) landedAfter(body string, placed map[string]store.Rec[podPlacement]) bool {
	for key, rec := range placed {
		if key != "main.0" && strings.Contains(body, e.store.Keys().Pods.Key(rec.Value.Identity.String())+`"`) {
			return true
		}
	}
	return false
}

// oldTenure: the same farm loses a lock and gets it again. A delayed write of the first tenure is refused.
func oldTenure(e *env) {
	e.startConsul("")
	p := newProxy(e.t, e.consul.Addr)
	for n := range 3 {
		e.preparer(n + 1)
	}
	e.farm("f1", p.addr)
	e.applied(e.hello(1, nil))
	id := e.rcID("hello")
	first := e.ownedBy(id, "f1", "", limit)

	batch := p.delay(e.store.Keys().Pods.Below(id))
	e.rcctl("", "rc", "scale", "hello", "3")
	e.catch(batch)
	e.put("/v1/session/destroy/"+first.Session, nil)
	e.ownedBy(id, "f1", first.Session, limit)
	e.within(limit, func() error { return e.converged(id, 3) })
	processes := e.processes()
	e.refused(batch)
	e.sameProcesses(processes, "after the write of the old tenure arrived")
	e.oneCopyEach()
}

// lateWrite: a transaction arrives after its client has given up: once because the network kept it, and once because
// the agent was paused. There are never two placements of one index.
func lateWrite(e *env) {
	e.startConsul("")
	p := newProxy(e.t, e.consul.Addr)
	const ttl = "12s" // the session must not end in the pause, because another scenario tests that
	for n := range 5 {
		e.preparer(n+1, "--ttl", ttl)
	}
	e.farm("f1", p.addr, "--ttl", ttl)
	e.applied(e.hello(1, nil))
	id := e.rcID("hello")
	first := e.ownedBy(id, "f1", "", limit)

	// The farm gives up, bumps its fence, and writes new placements. Then the old transaction arrives.
	kept := p.delay(e.store.Keys().Pods.Below(id))
	e.rcctl("", "rc", "scale", "hello", "3")
	e.catch(kept)
	e.within(limit, func() error { return e.converged(id, 3) })
	processes := e.processes()
	e.refused(kept)
	e.sameProcesses(processes, "after the kept transaction arrived")

	// A paused agent carries the transaction out when it continues.
	bumps := e.farmLogCount("f1", "bumped the fence")
	paused := p.delay(e.store.Keys().Pods.Below(id))
	e.rcctl("", "rc", "scale", "hello", "5")
	e.catch(paused)
	e.stop(e.consul.Proc.Pid)
	given := p.abandoned()
	close(paused.deliver)
	// The farm must give up meanwhile.
	e.within(limit, func() error {
		if p.abandoned() == given {
			return errors.New("the farm still waits for the paused agent")
		}
		return nil
	})
	if err := e.consul.Proc.Signal(syscall.SIGCONT); err != nil {
		e.t.Fatal(err)
	}
	var status int
	select {
	case status = <-paused.status:
	case <-time.After(limit):
		e.t.Fatal("Consul never answered the transaction that it was paused over")
	}
	e.within(limit, func() error { return e.converged(id, 5) })
	e.t.Logf("the transaction through the paused agent was answered with %d; bumps before and after: %d, %d",
		status, bumps, e.farmLogCount("f1", "bumped the fence"))
	if bumps == 0 || e.farmLogCount("f1", "bumped the fence") == bumps {
		e.t.Errorf("the farm did not bump its fence after each unknown outcome: %d, then %d", bumps,
			e.farmLogCount("f1", "bumped the fence"))
	}
	for key, pid := range processes {
		if now := e.processes()[key]; now != pid {
			e.t.Errorf("%s had pid %d, now %d", key, pid, now)
		}
	}
	if _, lock, err := e.owner(id); err != nil || lock.Session != first.Session {
		e.t.Errorf("the farm lost its lock in a pause shorter than its TTL: %v", err)
	}
	e.oneCopyEach()
}

func (e *env) log(name string) string {
	for _, d := range e.daemons {
		if d.name == name {
			return d.logText()
		}
	}
	e.t.Fatalf("no daemon %s", name)
	return ""
}

func (e *env) farmLogCount(name, text string) int { return strings.Count(e.log(name), text) }

// fastRestart: a farm and a preparer are killed and started again at once. They hold their locks again long before the
// sessions of the killed processes would end by themselves.
func fastRestart(e *env) {
	e.startConsul("")
	const ttl, soon = time.Minute, 20 * time.Second // the benchmark "failover" allows 3 s
	n1 := e.preparer(1, "--ttl", ttl.String())
	e.preparer(2)
	f1 := e.farm("f1", "")
	e.applied(e.hello(2, nil))
	id := e.rcID("hello")
	processes := e.processes()

	first := e.ownedBy(id, "f1", "", limit)
	f1.kill()
	usual := f1.args // in a new cluster a farm waits for two TTLs before it reports that all is well
	f1.args = append(slices.Clone(usual), "--ttl", ttl.String())
	f1.startAgain()
	before := e.ownedBy(id, "f1", first.Session, limit)
	f1.kill()
	started := time.Now()
	f1.startAgain()
	e.ownedBy(id, "f1", before.Session, soon)
	e.t.Logf("the farm had its lock again %s after it was started", time.Since(started).Round(time.Millisecond))

	locked := e.nodes()["n1"].Session
	n1.kill()
	started = time.Now()
	n1.startAgain()
	e.within(soon, func() error {
		if now := e.nodes()["n1"].Session; now == "" || now == locked {
			return fmt.Errorf("n1 is held by session %q, before by %q", now, locked)
		}
		return nil
	})
	e.t.Logf("the preparer had its lock again %s after it was started", time.Since(started).Round(time.Millisecond))
	e.sameProcesses(processes, "after both restarts")
	f1.kill()
	f1.args = usual
	f1.startAgain()
	e.applied(e.hello(1, nil))
}
