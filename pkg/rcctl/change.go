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

// change is what one command does to one controller. It is computed without I/O and may be computed again from a newer
// record.
type change struct {
	what string // for the audit record
	rc   rc.RC  // as it shall be; generation included, author not
	// manifests are what is to be stored, the controller's own first; none when they stay.
	manifests []store.DeployManifest
	signOnly  bool // nothing but signatures changes: the record stays as it is
	lines     []string
	none      bool // the record already asks for this: nothing is written
}

// current is what a change is computed from.
type current struct {
	rc        *rc.RC             // nil: there is no controller of this name
	service   *record.Service    // that rc is a revision of; nil: of none, or of one without a record
	manifest  *manifest.Manifest // nil: missing or unreadable, so it must be written
	signature string             // of manifest
	// stored are the signatures, or "", of those manifests of the change that are stored already, by digest.
	stored map[string]string
	// found: pods of it were found running and stay as they are until the record is written again (R2).
	found bool
}

// lacks reports whether the manifest of a group is missing or unreadable.
func (cur *current) lacks(digests rc.Digests) bool {
	return slices.ContainsFunc(digests.All()[1:], func(digest string) bool {
		_, is := cur.stored[digest]
		return !is
	})
}

// signed returns a line for each manifest of a change whose signature is another than before.
func (cur *current) signed(manifests []store.DeployManifest) []string {
	var lines []string
	for i, m := range manifests {
		what, was := "signature", cur.signature
		if i > 0 {
			what, was = "signature of manifest "+m.Digest, cur.stored[m.Digest]
		}
		if before, after := describeSignature(was), describeSignature(cmp.Or(m.Signature, cur.stored[m.Digest])); before != after {
			lines = append(lines, fmt.Sprintf("%s: %s -> %s", what, before, after))
		}
	}
	return lines
}

// applyRequest is what a user asks for.
type applyRequest struct {
	spec       *rc.Spec
	signatures map[string]string // by digest of the manifest; where there is none the stored one stays
	massStop   bool              // let the farms stop as many pods at once as this change takes
	create     bool              // it must not be there yet
}

// computeApply makes the record ask for what the document says. It may be refused. A document that asks a revision of a
// service for what it asks for already is not: it writes lost manifests again, signs them, and lets mass stops pass.
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
		m := store.DeployManifest{Digest: digest, Canonical: canonical[digest], Signature: newSignature(w.signatures[digest], cur.stored[digest], canonical[digest])}
		signed = signed || m.Signature != ""
		c.manifests = append(c.manifests, m)
	}
	if cur.rc == nil {
		c.what = "create"
	}
	c.lines = differences(cur.rc, cur.manifest, &after, spec.Pod)
	stays := cur.rc != nil && unchanged(cur.rc, &after, w.massStop) && cur.manifest != nil && !cur.lacks(digests)
	switch {
	case stays && cur.found:
		c.lines = []string{"pods that were found running: as they were -> as this asks for"}
	case stays && !signed:
		c.none, c.manifests = true, nil
	case stays:
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

// computeScale sets the number of replicas of one role. An empty role means the only one. It may be refused, or return a
// *field.Error about the role or the number.
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

// eachNodeScaled refuses a number for what has as many pods as there are nodes that match.
func eachNodeScaled(what string, count int) error {
	return &field.Error{Field: "N", Value: count, Allowed: "no number for " + what + ": its mode is each-node, so that the nodes that match say how many pods there are"}
}

// changed is the change from one record to another.
func changed(what string, before *rc.RC, after rc.RC, massStop bool) (change, error) {
	c := change{what: what, rc: after, none: unchanged(before, &after, massStop), lines: differences(before, nil, &after, nil)}
	c.next(massStop)
	return c, nil
}

// withCount returns the groups of something in which one role has another count; an empty role means the only one. It returns a *field.Error
// about the role or the number.
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
		return nil, badValue("--role", role, "one of the roles of "+of+": "+field.Or(field.Each(groups, func(g rc.ReplicaGroup) string { return g.Role })...))
	case total > rc.MaxReplicas:
		return nil, &field.Error{Field: "N", Value: count, Allowed: fmt.Sprintf("at most %d replicas in all roles together, this makes %d", rc.MaxReplicas, total)}
	}
	groups = slices.Clone(groups)
	groups[at].Count = &count
	return groups, nil
}

// computeDisable says whether farms leave the controller as it is. It may be refused.
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

// computeDelete marks the controller for deletion. It is refused while replicas are asked for, unless forced. For
// one that is marked already nothing is left to do but to let its mass stop pass. Of a service only a leftover may be
// deleted.
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
		return change{}, refusedf("rc %s has a pod on every matching node; add --force to stop them all, nothing was written", r.Name)
	}
	if n := r.Desired(); n > 0 && !force {
		return change{}, refusedf("rc %s asks for %s; scale it to 0 first (rcctl rc scale %s 0) or add --force, nothing was written", r.Name, field.Count(n, "replica"), r.Name)
	}
	after := *r
	at := now.UTC().Truncate(time.Second)
	after.DeletedAt = &at
	return changed("delete", r, after, massStop)
}

// unchanged reports whether there is nothing to write. To let the breaker pass what was asked for before is something: the
// breaker tripped because nobody had said so, and what is wanted has not changed.
func unchanged(before, after *rc.RC, massStop bool) bool {
	return same(before, after) && (!massStop || before.AllowMassStop == before.Generation)
}

// next gives a change that is one its generation.
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

// inRollout refuses a change of a controller that a rollout is in charge of.
func inRollout(c *change, rolls *rollout.Record) error {
	verb := c.what
	if verb == "apply" {
		verb = "change"
	}
	const text = "rc %s: rollout %s of service %s is in charge of it, so that nobody may %s it besides; " +
		"deploy the service's document: rcctl deploy -f FILE, or end the rollout: rcctl rollout abort %s; nothing was written"
	return refusedf(text, c.rc.Name, rolls.ID, rolls.Service, verb, rolls.Service)
}

// deleting refuses a change of a controller that is on its way out.
func deleting(r *rc.RC, advice string) error {
	if r.DeletedAt == nil {
		return nil
	}
	return refusedf("rc %s (%s) is marked for deletion since %s; %s", r.Name, r.ID, r.DeletedAt.Format(time.RFC3339), advice)
}

// differences returns what changes from one record and manifest to another, one line for each field: "path: before ->
// after", sorted by path. before and its manifest may be nil.
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

// bookkeeping are fields of the record that every change moves, or none.
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

// same reports whether two records ask for the same. Who asked, and when, does not count.
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
