package rcctl

import (
	"bytes"
	"encoding/json"
	"regexp"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

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
	return bytes.Equal(wishes(*a), wishes(*b))
}

func wishes(r rc.RC) []byte {
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
