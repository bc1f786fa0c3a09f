package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (e *env) farmLeader(ids ...string) string {
	e.t.Helper()
	var leader string
	e.within(limit, func() error {
		out, err := e.tryRcctl("", "farms", "-o", "json")
		if err != nil {
			return err
		}
		var farms []struct {
			ID    string
			Leads bool
		}
		if err := json.Unmarshal([]byte(out), &farms); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var leaders []string
		for _, f := range farms {
			if f.Leads {
				leaders = append(leaders, f.ID)
			}
		}
		if len(leaders) != 1 {
			return fmt.Errorf("these lead: %v", leaders)
		}
		for _, id := range ids {
			if id == leaders[0] {
				leader = id
				return nil
			}
		}
		return fmt.Errorf("%s leads, want one of %v", leaders[0], ids)
	})
	return leader
}

// spoiled writes an unreadable record of a node, about which only the leader alerts.
func (e *env) spoiled(name string) string {
	e.t.Helper()
	key := e.store.Keys().Nodes.Key(name)
	if _, err := e.client.Commit(e.t.Context(), []consul.Op{consul.Set(key, []byte("{garbage"))}); err != nil {
		e.t.Fatal(err)
	}
	return key
}

// noted waits until a record shows that an alert was sent. After that no successor sends it again.
func (e *env) noted(key string) {
	e.t.Helper()
	e.within(limit, func() error {
		incidents, err := e.store.ReadIncidents(e.t.Context())
		if err != nil {
			return err
		}
		for _, in := range incidents.Value.Records[key] {
			if in.AlertedAt != nil && in.ResolvedAt == nil {
				return nil
			}
		}
		return fmt.Errorf("no alert of %s: %+v", key, incidents.Value)
	})
}

// leaderLoss: the leading farm is killed. Later the leading farm is paused in the middle of a write. Each time another
// farm continues the leader's work, and no alert is sent twice. The write of the paused leader is refused.
func leaderLoss(e *env) {
	e.startConsul("")
	p := newProxy(e.t, e.consul.Addr)
	farms := map[string]*daemon{"f1": e.farm("f1", p.addr)}
	e.farmLeader("f1")
	farms["f2"], farms["f3"] = e.farm("f2", p.addr), e.farm("f3", p.addr)
	e.members("f1", "f2", "f3")
	e.farmLeader("f1") // no other farm is preferred to f1, so f1 still leads
	bad1 := e.spoiled("bad1")
	e.noted(bad1)

	farms["f1"].kill()
	second := e.farmLeader("f2", "f3")
	bad2 := e.spoiled("bad2")
	e.noted(bad2)
	farms["f1"].startAgain()
	e.members("f1", "f2", "f3")

	kept := p.delay(e.store.Keys().Incidents.Key())
	bad3 := e.spoiled("bad3")
	e.catch(kept)
	e.stop(farms[second].current().cmd.Process.Pid)
	others := []string{"f1", "f2", "f3"}
	for i, id := range others {
		if id == second {
			others = append(others[:i:i], others[i+1:]...)
			break
		}
	}
	e.farmLeader(others...)
	e.noted(bad3)
	e.refused(kept)
	farms[second].signal(syscall.SIGCONT)
	e.members("f1", "f2", "f3")
	e.farmLeader(others...)

	var ops []consul.Op
	for _, key := range []string{bad1, bad2, bad3} {
		ops = append(ops, consul.Delete(key))
	}
	if _, err := e.client.Commit(e.t.Context(), ops); err != nil {
		e.t.Fatal(err)
	}
	for _, key := range []string{bad1, bad2, bad3} {
		e.within(limit, func() error {
			if n := e.alerts("resolved", key); n != 1 {
				return fmt.Errorf("%s was resolved %d times", key, n)
			}
			return nil
		})
		if n := e.alerts("raised", key); n != 1 {
			e.t.Errorf("%s was raised %d times", key, n)
		}
	}
	if shown := e.rcctl("", "election", "show", "farm"); !strings.Contains(shown, "leads farm since") {
		e.t.Errorf("rcctl election show says\n%s", shown)
	}
}

func (e *env) untold(node string, id pod.Identity) {
	e.t.Helper()
	k := e.store.Keys()
	e.within(limit, func() error {
		for _, key := range []string{
			k.Intents.Key(node, id.String()),
			k.Realities.Key(node, id.String()), k.Pods.Key(id.String()),
		} {
			if _, err := e.client.Get(e.t.Context(), key, consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
				return fmt.Errorf("%s is still there: %w", key, err)
			}
		}
		return nil
	})
}

// tells writes an intent for a pod that no other record has.
func (e *env) tells(node string) pod.Identity {
	e.t.Helper()
	id := pod.Identity{RCID: store.NewID(), Role: "main"}
	intent, err := json.Marshal(pod.Intent{
		Identity: id, PodID: "lost",
		Digest: strings.Repeat("0", 64), State: pod.Running, Revision: 1,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.client.Commit(e.t.Context(),
		[]consul.Op{consul.Set(e.store.Keys().Intents.Key(node, id.String()), intent)}); err != nil {
		e.t.Fatal(err)
	}
	return id
}

// janitorDuties: when a machine is gone and no record refers to its records any more, the leader removes its records.
// If an intent has no controller, the leader raises an alert. An operator sweeps the first such intent. For the second,
// the leader itself requests the stop. When the machine comes back, it is a new node.
func janitorDuties(e *env) {
	e.startConsul("")
	agents, preparers := e.machines(3)
	id := e.tells("n2")
	for _, farm := range []string{"f1", "f2"} {
		e.farm(farm, "", "--forget-node-after", "10s", "--sweep-orphans-after", "10s")
	}
	h := e.hello(1, nil)
	h.Selector = "rack=a" // a label of n1
	e.applied(h)
	processes := e.processes()
	e.noted("orphaned/" + id.RCID)
	stop := "stop lost-main-0 (rc " + id.RCID
	if out := e.rcctl("", "node", "sweep", "n2", "--dry-run"); !strings.Contains(out, "would ask to "+stop) {
		e.t.Errorf("rcctl says\n%s", out) // the leader does not sweep it: as many controllers are gone as exist
	}
	if out := e.rcctl("", "node", "sweep", "n2"); !strings.Contains(out, "asked to "+stop) {
		e.t.Errorf("rcctl says\n%s", out)
	}
	e.untold("n2", id)

	e.powerOff(3, agents[3], preparers[3])
	nodeKey := e.store.Keys().Nodes.Key("n3")
	e.within(2*limit, func() error {
		if _, err := e.client.Get(e.t.Context(), nodeKey, consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
			return fmt.Errorf("n3 is still there: %w", err)
		}
		return nil
	})
	if out := e.rcctl("", "audit", "--node", "n3"); !strings.Contains(out, "its machine has been gone since") {
		e.t.Errorf("the audit trail says\n%s", out)
	}
	if _, err := e.client.Get(e.t.Context(), e.store.Keys().Nodes.Key("n2"), consul.Consistent); err != nil {
		e.t.Errorf("n2: %v", err)
	}

	agents[3].startAgain()
	preparers[3].startAgain()
	e.nodeLocked("n3", true)
	h = e.hello(1, nil)
	h.Name, h.Port, h.Selector = "back", 8081, "rack=c" // a label of n3
	e.applied(h)
	id = e.tells("n2")
	e.untold("n2", id)
	if out := e.rcctl("", "audit", "--node", "n2"); !strings.Contains(out,
		"it has had neither a controller nor a placement for 10s") {
		e.t.Errorf("the audit trail says\n%s", out)
	}
	e.keptProcesses(processes, "while a machine was gone")
}
