package rcctl

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// change is what one command does to one controller. It is computed again if the record changes meanwhile.
type change struct {
	what string // for the audit record
	rc   rc.RC  // the new record, with its generation but without its author
	// to store, the controller's own first; empty if nothing about them changes
	manifests []store.DeployManifest
	signOnly  bool // only signatures change, not the record
	lines     []string
	none      bool // the record already asks for this: nothing is written
	warning   string
}

type current struct {
	rc        *rc.RC             // nil: there is no controller of this name
	service   *record.Service    // of which rc is a revision; nil: there is none, or it has no record
	beside    bool               // rc is nil, and a service has the name
	manifest  *manifest.Manifest // nil: missing or unreadable, so it must be written
	signature string             // of manifest
	// by digest, the signature or "" of each manifest of the change that Consul has
	stored map[string]string
	// farms have adopted pods, and keep them as they are until the record is written again (R2)
	found bool
}

// lacks reports whether the manifest of a group is missing or unreadable.
func (c *current) lacks(digests rc.Digests) bool {
	return slices.ContainsFunc(digests.All()[1:], func(digest string) bool {
		_, is := c.stored[digest]
		return !is
	})
}

func (c *current) signed(manifests []store.DeployManifest) []string {
	var lines []string
	for i, m := range manifests {
		what, was := "signature", c.signature
		if i > 0 {
			what, was = "signature of manifest "+m.Digest, c.stored[m.Digest]
		}
		before, after := describeSignature(was), describeSignature(cmp.Or(m.Signature, c.stored[m.Digest]))
		if before != after {
			lines = append(lines, fmt.Sprintf("%s: %s -> %s", what, before, after))
		}
	}
	return lines
}

type applyRequest struct {
	spec       *rc.Spec
	signatures map[string]string // by digest of the manifest; without an entry the stored signature is kept
	massStop   bool              // the breaker lets this change stop any number of pods
	create     bool              // the controller must not exist yet
}

// computeApply refuses to change a revision of a service. It accepts a document that leaves the revision as it is,
// because that can write lost manifests again, sign them, or allow mass stops.
func computeApply(w applyRequest, cur current, newID string) (change, error) {
	spec := w.spec
	digests, canonical, err := rc.Manifests(spec.Pod, spec.ReplicaGroups)
	if err != nil {
		return change{}, err
	}
	var after rc.RC
	if cur.rc != nil {
		if err := deleting(cur.rc, "apply again when it is gone: rcctl rc delete "+cur.rc.ID+" --wait"); err != nil {
			return change{}, err
		}
		after = *cur.rc
	} else {
		after.ID = newID
	}
	spec.Apply(&after, digests)
	if cur.service != nil && !same(cur.rc, &after) {
		return change{}, cur.refuseApply()
	}
	c := change{what: "apply", rc: after}
	signed := false
	for _, digest := range digests.All() {
		m := store.DeployManifest{
			Digest: digest, Canonical: canonical[digest],
			Signature: newSignature(w.signatures[digest], cur.stored[digest], canonical[digest]),
		}
		signed = signed || m.Signature != ""
		c.manifests = append(c.manifests, m)
	}
	if cur.rc == nil {
		c.what = "create"
	}
	if cur.beside {
		c.warning = fmt.Sprintf("there is also a service with the name %s, which has pods of its own; to change the "+
			"service: rcctl deploy -f FILE; to remove this rc: rcctl rc delete %s --force", spec.Name, spec.Name)
	}
	c.lines = differences(cur.rc, cur.manifest, &after, spec.Pod)
	kept := cur.rc != nil && unchanged(cur.rc, &after, w.massStop) && cur.manifest != nil && !cur.lacks(digests)
	switch {
	case kept && cur.found:
		c.lines = []string{"pods that were found running: as they were -> as this asks for"}
	case kept && !signed:
		c.none, c.manifests = true, nil
	case kept:
		c.what, c.signOnly = "sign", true
	case cur.rc != nil && cur.rc.Digests().Equal(digests) && (cur.manifest == nil || cur.lacks(digests)):
		c.lines = []string{"manifest: its record was missing or unreadable -> written again"}
	}
	c.lines = append(c.lines, cur.signed(c.manifests)...)
	if !c.signOnly {
		c.next(w.massStop)
	}
	return c, nil
}

// computeScale changes one role; empty: the only one. Its error is a refusal, or a *field.Error about the role or N.
func computeScale(cur current, role string, count int, massStop bool) (change, error) {
	if err := deleting(cur.rc, "it cannot be scaled"); err != nil {
		return change{}, err
	}
	if cur.rc.EachNode() {
		return change{}, eachNodeScaled("rc "+cur.rc.Name, count)
	}
	if cur.service != nil {
		return change{}, cur.refuseScale(role, count)
	}
	groups, err := withCount(cur.rc.Name, cur.rc.ReplicaGroups, role, count)
	if err != nil {
		return change{}, err
	}
	after := *cur.rc
	after.ReplicaGroups = groups
	return changed("scale", cur.rc, after, massStop)
}

func eachNodeScaled(what string, count int) error {
	return &field.Error{Field: "N", Value: count, Allowed: "no number for " + what +
		", because its mode is each-node: it runs one pod on each node that matches"}
}

func changed(what string, before *rc.RC, after rc.RC, massStop bool) (change, error) {
	c := change{
		what: what, rc: after, none: unchanged(before, &after, massStop), lines: differences(before, nil, &after, nil),
	}
	c.next(massStop)
	return c, nil
}

// withCount changes the count of one role; empty: the only one. Its error is a *field.Error, in which of is the name of
// the object.
func withCount(of string, groups []rc.ReplicaGroup, role string, count int) ([]rc.ReplicaGroup, error) {
	at, total := -1, count
	for i, g := range groups {
		if g.Role == role || role == "" && len(groups) == 1 {
			at = i
		} else if g.Count != nil {
			total += *g.Count
		}
	}
	switch {
	case at < 0:
		return nil, badValue("--role", role,
			"one of the roles of "+of+": "+
				field.Or(field.Each(groups, func(g rc.ReplicaGroup) string { return g.Role })...))
	case total > rc.MaxReplicas:
		return nil, &field.Error{
			Field: "N", Value: count,
			Allowed: fmt.Sprintf("at most %d replicas in all roles together, this makes %d", rc.MaxReplicas, total),
		}
	}
	groups = slices.Clone(groups)
	groups[at].Count = &count
	return groups, nil
}

func computeDisable(cur rc.RC, disabled, massStop bool) (change, error) {
	if err := deleting(&cur, "it cannot be disabled or enabled"); err != nil {
		return change{}, err
	}
	after := cur
	after.Disabled = disabled
	c, err := changed(map[bool]string{true: "disable", false: "enable"}[disabled], &cur, after, massStop)
	if err == nil && !c.none {
		c.rc.Toggled++
	}
	return c, err
}

// computeDelete refuses a controller that asks for replicas, unless forced, and a revision that its service needs. A
// repeated deletion can only allow the mass stop.
func computeDelete(cur current, force, massStop bool, now time.Time) (change, error) {
	r := cur.rc
	if r.DeletedAt != nil {
		c := change{what: "delete", rc: *r, none: unchanged(r, r, massStop)}
		c.next(massStop)
		return c, nil
	}
	if cur.service != nil && !cur.isLeftover() {
		return change{}, cur.refuseDelete()
	}
	if r.EachNode() && !force {
		const text = "rc %s has a pod on every matching node; add --force to stop them all, nothing was written"
		return change{}, refusedf(text, r.Name)
	}
	if n := r.Desired(); n > 0 && !force {
		const text = "rc %s asks for %s; scale it to 0 first (rcctl rc scale %s 0) or add --force, nothing was written"
		return change{}, refusedf(text, r.Name, field.Count(n, "replica"), r.Name)
	}
	after := *r
	at := now.UTC().Truncate(time.Second)
	after.DeletedAt = &at
	return changed("delete", r, after, massStop)
}

// unchanged reports whether there is nothing to write. --allow-mass-stop alone is written, because the breaker may have
// withheld the stops of the same change.
func unchanged(before, after *rc.RC, massStop bool) bool {
	return same(before, after) && (!massStop || before.AllowMassStop == before.Generation)
}

func (c *change) next(massStop bool) {
	if c.none {
		return
	}
	c.rc.Generation++
	c.rc.AllowMassStop = 0
	if massStop {
		c.rc.AllowMassStop = c.rc.Generation
		c.lines = append(c.lines, "allow_mass_stop: for this generation")
	}
}

func inRollout(c *change, rolls *rollout.Record) error {
	verb := c.what
	if verb == "apply" {
		verb = "change"
	}
	const text = "rc %s: rollout %s of service %s is in charge of it, so only the rollout may %s it; " +
		"deploy the service's document: rcctl deploy -f FILE, or end the rollout: rcctl rollout abort %s; nothing " +
		"was written"
	return refusedf(text, c.rc.Name, rolls.ID, rolls.Service, verb, rolls.Service)
}

func deleting(r *rc.RC, advice string) error {
	if r.DeletedAt == nil {
		return nil
	}
	return refusedf("rc %s (%s) was marked for deletion at %s; %s",
		r.Name, r.ID, r.DeletedAt.Format(time.RFC3339), advice)
}

// differences returns a line for each field that differs, "path: before -> after", sorted by path. before and its
// manifest may be nil.
func differences(before *rc.RC, beforePod *manifest.Manifest, after *rc.RC, afterPod *manifest.Manifest) []string {
	var lines []string
	for _, f := range plan.Differences(leavesOf(before, beforePod), leavesOf(after, afterPod)) {
		if !f.IsOrder() {
			lines = append(lines, f.String())
		}
	}
	if len(lines) == 0 && !same(before, after) {
		lines = append(lines, "order of replica_groups changed")
	}
	return lines
}

// bookkeeping are fields that every change sets, or none.
var bookkeeping = [...]string{"id", "name", "generation", "changed_by", "allow_mass_stop"}

func leavesOf(r *rc.RC, m *manifest.Manifest) map[string]plan.Leaf {
	into := map[string]plan.Leaf{}
	if r != nil {
		plan.Flatten("", r, into)
		for _, key := range bookkeeping {
			delete(into, key)
		}
	}
	if m != nil {
		plan.Flatten("pod", m, into)
	}
	return into
}

// same reports whether two records desire the same pods in the same way.
func same(a, b *rc.RC) bool {
	if a == nil || b == nil {
		return a == b
	}
	return bytes.Equal(documentOf(*a), documentOf(*b))
}

func documentOf(r rc.RC) []byte {
	r.Generation, r.Toggled, r.ChangedBy, r.AllowMassStop = 0, 0, "", 0
	data, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	return data
}

// forTerminal shortens the digests in a line; the audit record has them in full.
func forTerminal(line string) string {
	return regexp.MustCompile(`[0-9a-f]{64}`).ReplaceAllStringFunc(line, inspect.Short)
}
