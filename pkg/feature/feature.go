// Package feature has a table of the record fields that each version brought. Programs are allowed to write only fields
// up to the version of the gate, because older farms and nodes do not know later fields (ADR 28).
package feature

import (
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Oldest is the version of a gate that was never raised, and of a program that reports none.
const Oldest = "0.0.0"

// Feature is one or more fields of records that are used together, or a kind of record.
type Feature struct {
	Name  string // as in the tags of its fields
	Since string // the version that brought it
	What  string // for people
}

// Table lists features. A feature is never removed.
type Table []Feature

// Known are the features of this program.
var Known = Table{
	{Name: "all-ended", Since: "0.2.0", What: "reports show that all processes of a failed pod have ended for good"},
	{Name: "domain", Since: "0.2.0", What: "the domain of host names as a setting of the cluster"},
	{Name: "each-node", Since: "0.2.0", What: "mode: a controller with a pod on each node"},
	{Name: "forget-nodes", Since: "0.2.0", What: "--forget-node-after: the leader removes nodes that are gone"},
	{Name: "group-manifests", Since: "0.2.0", What: "environment, command and resources of a replica group"},
	{Name: "group-placing", Since: "0.2.0", What: "spread, affinity and placing of a replica group"},
	{Name: "images", Since: "0.2.0", What: "kind: image: containers made from OCI images"},
	{Name: "lower-counts", Since: "0.2.0", What: "a rollout to fewer pods stops no pod before a new pod is " +
		"available"},
	{Name: "mode-stages", Since: "0.2.0", What: "changes between a number of replicas and each-node go in stages"},
	{Name: "ordered", Since: "0.2.0", What: "ordered: replicas of a group one after the other, and no index twice"},
	{Name: "out-of-memory", Since: "0.2.0", What: "reports show that the kernel killed a process for lack of " +
		"memory, and at which limit"},
	{
		Name: "outside-scheduler", Since: "0.2.0",
		What: "farms publish that they ask an outside scheduler for nodes, so that no plan names any",
	},
	{Name: "own-labels", Since: "0.2.0", What: "labels of one pod: rcctl label pod"},
	{Name: "placing", Since: "0.2.0", What: "spread with a skew, affinity and placing of a controller"},
	{Name: "ports-in-use", Since: "0.2.0", What: "nodes publish which ports other programs use"},
	{Name: "push", Since: "0.2.0", What: "preparer --intents push: farms push intents to nodes"},
	{
		Name: "restart-after", Since: "0.2.0",
		What: "health.restart_after of a pod, and the reason why a node ended a process",
	},
	{Name: "role-replicas", Since: "0.2.0", What: "POD_REPLICAS: the number of replicas of a role"},
	{Name: "second-node", Since: "0.2.0", What: "a pod that never became available is tried once on another node"},
	{
		Name: "stuck", Since: "0.2.0",
		What: "a rollout names what it waits for after its stage_timeout; rollout promote --force",
	},
	{Name: "supervisor-silent", Since: "0.2.0", What: "nodes publish that their supervisor does not answer"},
	{Name: "witness", Since: "0.2.0", What: "the schema names the node on whose report alone its epoch began"},
}

// Newest returns the newest version that brought a feature.
func (t Table) Newest() string {
	newest := Oldest
	for _, f := range t {
		newest = higher(newest, f.Since)
	}
	return newest
}

// Named returns the feature, or nil.
func (t Table) Named(name string) *Feature {
	return field.Find(t, func(f *Feature) bool { return f.Name == name })
}

// Waiting returns the features that a gate forbids, the oldest first.
func (t Table) Waiting(gate string) Table {
	waiting := slices.DeleteFunc(slices.Clone(t), func(f Feature) bool { return !After(f.Since, gate) })
	slices.SortStableFunc(waiting, func(a, b Feature) int { return compare(a.Since, b.Since) })
	return waiting
}

// Emulated returns the default emulation version of a build: the version of the newest feature or, for a release, its
// own version if that is lower.
func (t Table) Emulated(build string) string {
	release, rest, _ := strings.Cut(strings.TrimPrefix(semver.Canonical("v"+build), "v"), "-")
	if release == "" || slices.Contains(strings.Split(rest, "."), "dev") {
		return t.Newest()
	}
	return lower(release, t.Newest())
}

// CheckEmulation adds a mistake if a build cannot emulate a version.
func (t Table) CheckEmulation(errs *field.Errors, setting, version, build string) {
	if most := t.Emulated(build); !IsVersion(version) || After(version, most) {
		errs.Add(setting, version, "a version such as "+most+", which is the newest whose records this program may "+
			"write, or an earlier one")
	}
}

// maxVersion is in bytes.
const maxVersion = 128

// IsVersion allows only semantic versions with three numbers, without a leading "v".
func IsVersion(text string) bool {
	v := "v" + text
	return len(text) <= maxVersion && semver.IsValid(v) && semver.Canonical(v)+semver.Build(v) == v
}

// Counted returns the version in a record, or Oldest if it is missing or invalid.
func Counted(version string) string {
	if !IsVersion(version) {
		return Oldest
	}
	return higher(version, Oldest)
}

// After reports whether version is newer than the version than.
func After(version, than string) bool { return compare(version, than) > 0 }

// Candidate returns the emulation version for an election, which must not be higher than the build's version.
func Candidate(build, emulated string) string { return lower(build, emulated) }

func compare(a, b string) int { return semver.Compare("v"+a, "v"+b) }

func higher(a, b string) string {
	if After(b, a) {
		return b
	}
	return a
}

func lower(a, b string) string {
	if After(a, b) {
		return b
	}
	return a
}
