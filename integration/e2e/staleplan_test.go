package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// stalePlan: a plan is carried out only if everything on which it depends is unchanged since the plan was made.
// Otherwise the error has the fields that changed, and nothing is written. A new plan of the same document works. The
// very first deployment needs no farms, nodes or records.
func stalePlan(e *env) {
	e.startConsul("")
	w := web{replicas: 2, version: "1", update: "step: 2"}
	e.detached(w)
	e.preparer(1)
	e.farm("f1", "")
	e.awaitEnd()
	e.runs(map[string]int{"1": 2})
	e.released()

	w.version = "2"
	scaled, replaced := e.planned(w), e.planned(w)
	e.rcctl("", "scale", "web", "3", "--yes")
	e.runs(map[string]int{"1": 3})
	e.refusedAsStale(scaled, "replica_groups")

	w.version, w.replicas, w.fields = "3", 3, "spread: rack\n"
	e.detached(w)
	e.refusedAsStale(replaced, "replica_groups", "spread", "HELLO_VERSION", "rollout: (none) -> progressing")
	e.awaitEnd()
	e.runs(map[string]int{"3": 3})
	e.released()

	w.version = "2"
	again := e.planned(w)
	if done, err := again.Run(e.t.Context()); err != nil || done.Rollout() == "" {
		e.t.Errorf("a plan of what is there: %+v, %v", done, err)
	}
	e.runs(map[string]int{"2": 3})
}

// Until the last rollout has ended, no plan can be made.
func (e *env) released() {
	e.t.Helper()
	e.within(limit, func() error {
		recs, corrupt, err := e.store.Deployments.ListRollouts(e.t.Context())
		for i := range recs {
			err = errors.Join(err, fmt.Errorf("%s has a rollout", recs[i].Value.Service))
		}
		return errors.Join(append(corrupt, err)...)
	})
}

func (e *env) planned(w web) *plan.Deployment {
	e.t.Helper()
	docs, err := document.AllToJSON([]byte(e.document(w)), "a document")
	if err != nil {
		e.t.Fatal(err)
	}
	spec, err := record.Decode(docs[0])
	if err != nil {
		e.t.Fatal(err)
	}
	spec, err = (&plan.ServiceSpecResolver{}).Resolve(e.t.Context(), spec)
	if err != nil {
		e.t.Fatal(err)
	}
	d := plan.NewDeployment(&deploy.Client{Store: e.store, Who: "scenario"}, *spec, nil)
	d.Detach = true
	if p, err := d.Plan(e.t.Context()); err != nil || p.Empty() {
		e.t.Fatalf("plan of version %s: %+v, %v", w.version, p, err)
	}
	return d
}

func (e *env) refusedAsStale(d *plan.Deployment, fields ...string) {
	e.t.Helper()
	before := e.keysOfDeploys()
	_, err := d.Run(e.t.Context())
	var stale *plan.StaleError
	if !errors.As(err, &stale) {
		e.t.Fatalf("a stale plan ran: %v", err)
	}
	for _, f := range fields {
		if !slices.ContainsFunc(stale.Changes, func(line string) bool { return strings.Contains(line, f) }) {
			e.t.Errorf("%v: %q does not name %s", err, stale.Changes, f)
		}
	}
	e.t.Logf("%v: %q", err, stale.Changes)
	for key, index := range e.keysOfDeploys() {
		if before[key] != index {
			e.t.Errorf("%s was written, the keys were %v", key, before)
		}
	}
}

// keysOfDeploys returns the keys that only deployments make, with their create indices, and the document's key with its
// last write.
func (e *env) keysOfDeploys() map[string]uint64 {
	e.t.Helper()
	found := map[string]uint64{}
	for _, below := range []string{"deployments/", "manifests/", "rcs/", "names/", "rollouts/"} {
		pairs, err := e.client.List(e.t.Context(), store.DefaultPrefix+below, consul.Consistent)
		if err != nil {
			e.t.Fatal(err)
		}
		for _, p := range pairs {
			found[p.Key] = p.CreateIndex
			if strings.HasSuffix(p.Key, "/spec") {
				found[p.Key] = p.ModifyIndex
			}
		}
	}
	return found
}
