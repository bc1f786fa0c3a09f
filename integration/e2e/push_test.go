package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

func (e *env) opens() *cluster.Credentials {
	e.t.Helper()
	if e.credentials == nil {
		var err error
		if e.credentials, err = cluster.NewCredentials(filepath.Join(e.dir, "credentials")); err != nil {
			e.t.Fatal(err)
		}
	}
	return e.credentials
}

// pushed starts a node to which farms push.
func (e *env) pushed(n int, consulAddr string, every time.Duration) *daemon {
	e.t.Helper()
	files, err := e.opens().Of(fmt.Sprintf("n%d", n))
	if err != nil {
		e.t.Fatal(err)
	}
	return e.preparerAt(n, consulAddr, "--intents", "push", "--intents-every",
		every.String(), "--api-addr", e.address(n)+":0",
		"--api-token-file", files.Token, "--api-tls-cert", files.Cert, "--api-tls-key", files.Key)
}

// lastPush returns the push about the newest intent of a controller on a node.
func (e *env) lastPush(name, rcID string) scale.Request {
	e.t.Helper()
	schema, err := e.store.EnsureSchema(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	lock, err := e.client.Get(e.t.Context(), e.store.Keys().Locks.Key(rcID), consul.Consistent)
	if err != nil {
		e.t.Fatal(err)
	}
	intents, err := e.client.List(e.t.Context(), e.store.Keys().Intents.Below(name), consul.Consistent)
	if err != nil {
		e.t.Fatal(err)
	}
	r := scale.New("hello", 1)
	r.Epoch = &scale.Epoch{
		Cluster: schema.Value.Epoch, RCID: rcID,
		Term: scale.Term(schema.Value.Epoch, lock.ModifyIndex),
	}
	for _, in := range intents {
		r.Revision = max(r.Revision, int64(in.ModifyIndex))
	}
	return r
}

func (e *env) push(name string, r scale.Request) (status int) {
	e.t.Helper()
	client, err := e.opens().Client(name, e.nodes()[name].Value.API)
	if err != nil {
		e.t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Scale(e.t.Context(), r)
	if refused, is := errors.AsType[*nodeapi.RefusedError](err); is {
		return refused.Status
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return 200
}

func (e *env) versionOn(n int, version string) {
	e.t.Helper()
	e.within(limit, func() error {
		running, err := e.scan()
		if err != nil {
			return err
		}
		var found []string
		for at, pid := range running {
			if vars := environOf(pid); vars["NODE_ADDRESS"] == e.address(n) {
				found = append(found, vars["VERSION"]+" at "+at)
			}
		}
		if len(found) != 1 || !strings.HasPrefix(found[0], version+" ") {
			return fmt.Errorf("on n%d run %q, want version %s", n, found, version)
		}
		return nil
	})
}

// pushScenario: nodes read their intents once an hour, without a standing query. The first node carries out an intent
// when its farm pushes. A late push of the former owner changes nothing. While the node is cut off from Consul, it
// answers a push with an error and carries out nothing; afterwards it carries out its intents. If a farm is killed
// between its write and its push, the next owner pushes. A node whose API farms cannot reach watches its intents, and
// its record and rcctl nodes show this.
func pushScenario(e *env) {
	e.startConsulOnDisk()
	between, late := newProxy(e.t, e.consul.Addr), newProxy(e.t, e.consul.Addr)
	e.pushed(1, between.addr, time.Hour)
	e.pushed(2, "", time.Hour)
	e.preparerAt(3, "", "--intents", "push", "--intents-every", time.Hour.String())
	f1 := e.farm("f1", "", e.opens().Flags()...) // its version gate lets nodes write that farms push
	for name, says := range map[string]string{
		"n1": node.IntentsPush,
		"n2": node.IntentsPush, "n3": node.IntentsRefused,
	} {
		e.within(limit, func() error {
			if rec, there := e.nodes()[name]; !there || rec.Value.Intents != says {
				return fmt.Errorf("the record of %s says %+v", name, rec.Value)
			}
			return nil
		})
	}
	one := e.hello(1, map[string]string{"VERSION": "1"})
	one.Selector = "rack=a"
	e.applied(one)
	e.versionOn(1, "1")
	if out := e.rcctl("", "nodes"); strings.Count(out, " push ") != 2 || strings.Count(out, " watch (refused) ") != 1 {
		e.t.Errorf("nodes are shown as\n%s", out)
	}
	watching := e.hello(1, map[string]string{"VERSION": "5"})
	watching.Name, watching.Selector = "watching", "rack=c"
	e.applied(watching)
	e.versionOn(3, "5")

	id := e.rcID("hello")
	former := e.lastPush("n1", id)
	f1.kill()
	f2 := e.farm("f2", "", e.opens().Flags()...)
	one.Env["VERSION"] = "2"
	e.applied(one)
	e.versionOn(1, "2")
	before := e.processes()
	if status := e.push("n1", former); status != 409 {
		e.t.Errorf("the former owner's request is answered with %d", status)
	}
	if status := e.push("n1", e.lastPush("n1", id)); status != 200 {
		e.t.Errorf("the owner's request, sent again, is answered with %d", status)
	}
	e.sameProcesses(before, "after a request of the former owner")

	between.away(true)
	one.Env["VERSION"] = "3"
	known := e.lastPush("n1", id).Revision
	e.apply(one)
	e.within(limit, func() error {
		if now := e.lastPush("n1", id).Revision; now == known {
			return errors.New("the intent is as it was")
		}
		return nil
	})
	if status := e.push("n1", e.lastPush("n1", id)); status != 503 {
		e.t.Errorf("without Consul a request is answered with %d", status)
	}
	e.within(limit, func() error {
		farms, _, err := e.store.HeardOf(e.t.Context())
		if u := farms["f2"].Untold; err == nil && (u == nil || u.Count != 1 || u.Nodes[0].Node != "n1") {
			err = fmt.Errorf("f2 could not tell %+v", u)
		}
		return err
	})
	e.sameProcesses(before, "without Consul")
	between.away(false)
	e.versionOn(1, "3")

	f2.kill()
	f3 := e.farm("f3", late.addr, e.opens().Flags()...)
	write := late.delay("intent/n2/")
	two := e.hello(1, map[string]string{"VERSION": "4"})
	two.Name, two.Selector = "late", "rack=b"
	e.apply(two)
	e.catch(write)
	f3.kill()
	close(write.deliver)
	if status := <-write.status; status != 200 {
		e.t.Fatalf("the write of the farm that was killed is answered with %d", status)
	}
	f2.startAgain()
	e.versionOn(2, "4")
	e.applied(two)
}
