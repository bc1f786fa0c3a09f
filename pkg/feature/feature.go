// Package feature says which version brought which fields of records, and which of them may be written: those that everybody who lives
// knows. The version that holds for all is the gate, which the store keeps and the leader of the farms raises (ADR 28). All of it is pure.
package feature

import (
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Oldest is what a gate says that nobody has raised, and what a program emulates that does not say.
const Oldest = "0.0.0"

// Feature is a field of a record, several of them that are used together, or a kind of record.
type Feature struct {
	Name  string // in the tags of its fields
	Since string // the version that brought it
	What  string // for people
}

// Table lists features, in any order. A feature stays in it for ever.
type Table []Feature

// Known are the features of this program.
var Known = Table{
	{Name: "all-ended", Since: "0.2.0", What: "nodes say that all processes of a failed pod have ended for good"},
	{Name: "domain", Since: "0.2.0", What: "the domain of host names as a setting of the cluster"},
	{Name: "each-node", Since: "0.2.0", What: "mode: a controller with a pod on each node"},
	{Name: "forget-nodes", Since: "0.2.0", What: "--forget-node-after: the leader removes nodes that are gone"},
	{Name: "group-manifests", Since: "0.2.0", What: "environment, command and resources of a replica group"},
	{Name: "group-placing", Since: "0.2.0", What: "spread, affinity and placing of a replica group"},
	{Name: "lower-counts", Since: "0.2.0", What: "rollouts that lower a number of pods take none before the new version serves"},
	{Name: "mode-stages", Since: "0.2.0", What: "changes between counts and a pod on each node go in stages"},
	{Name: "ordered", Since: "0.2.0", What: "ordered: replicas of a group one after the other, and no index twice"},
	{Name: "out-of-memory", Since: "0.2.0", What: "nodes say that the kernel killed a process for want of memory, and at which limit"},
	{Name: "outside-scheduler", Since: "0.2.0", What: "farms say that they ask an outside scheduler for nodes, so that no plan names any"},
	{Name: "own-labels", Since: "0.2.0", What: "labels of one pod: rcctl label pod"},
	{Name: "placing", Since: "0.2.0", What: "spread with a skew, affinity and placing of a controller"},
	{Name: "ports-in-use", Since: "0.2.0", What: "nodes say which ports something else than their pods has"},
	{Name: "push", Since: "0.2.0", What: "preparer --intents push: farms tell nodes of their intents"},
	{Name: "restart-after", Since: "0.2.0", What: "health.restart_after of a pod, and why a node has ended a process"},
	{Name: "role-replicas", Since: "0.2.0", What: "processes are told how many replicas their role has"},
	{Name: "second-node", Since: "0.2.0", What: "a pod that never became available is tried once on another node"},
	{Name: "stuck", Since: "0.2.0", What: "rollouts say what they wait for after their timeout; rollout promote --force"},
	{Name: "supervisor-silent", Since: "0.2.0", What: "nodes say that their supervisor does not answer"},
	{Name: "witness", Since: "0.2.0", What: "the cluster's record says on which node's word alone its epoch began"},
}

// Newest returns the newest version that brought a feature.
func (t Table) Newest() string {
	newest := Oldest
	for _, f := range t {
		newest = higher(newest, f.Since)
	}
	return newest
}

// Named returns the feature with a name, nil where there is none.
func (t Table) Named(name string) *Feature {
	return field.Find(t, func(f *Feature) bool { return f.Name == name })
}

// Waiting returns the features that a gate does not allow yet, the oldest first.
func (t Table) Waiting(gate string) Table {
	waiting := slices.DeleteFunc(slices.Clone(t), func(f Feature) bool { return !After(f.Since, gate) })
	slices.SortStableFunc(waiting, func(a, b Feature) int { return compare(a.Since, b.Since) })
	return waiting
}

// Emulated returns what a build of a version emulates unless it is told otherwise. A release emulates itself, but nothing newer than its
// newest feature; a build between releases knows what its sources do.
func (t Table) Emulated(build string) string {
	release, rest, _ := strings.Cut(strings.TrimPrefix(semver.Canonical("v"+build), "v"), "-")
	if release == "" || slices.Contains(strings.Split(rest, "."), "dev") {
		return t.Newest()
	}
	return lower(release, t.Newest())
}

// CheckEmulation reports, with the name of the setting, why a build cannot emulate a version.
func (t Table) CheckEmulation(errs *field.Errors, setting, version, build string) {
	if most := t.Emulated(build); !IsVersion(version) || After(version, most) {
		errs.Add(setting, version, "a version such as "+most+", which is the newest whose records this program may write, or an earlier one")
	}
}

// maxVersion bounds a version in bytes.
const maxVersion = 128

// IsVersion reports whether a text is a semantic version with all of its three numbers, without a leading "v".
func IsVersion(text string) bool {
	v := "v" + text
	return len(text) <= maxVersion && semver.IsValid(v) && semver.Canonical(v)+semver.Build(v) == v
}

// Counted returns what a version in a record counts as: one that is missing, or is none, as the oldest.
func Counted(version string) string {
	if !IsVersion(version) {
		return Oldest
	}
	return higher(version, Oldest)
}

// After reports whether a version is newer than another one.
func After(version, than string) bool { return compare(version, than) > 0 }

// Candidate returns what a build may say in an election that it emulates: not more than its own version.
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
