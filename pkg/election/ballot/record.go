// Package ballot decides who leads: what candidates write, what stands on the lease, and Elect, a pure function of both. Every candidate
// computes the same from the same records; what differs between them is only what each has seen so far, and the lock of the lease
// decides then. pkg/election is the loop around it.
package ballot

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"golang.org/x/mod/semver"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Strategy names how the leader is chosen among the candidates.
type Strategy string

// The strategies that Elect knows. Others may be named in records: whoever wrote them has a program that assigns the lease.
const (
	// OldestEmulationVersion chooses the lowest emulation version, then the lowest binary version, then the oldest candidate, so that the
	// leader of a mixed fleet does nothing that another member does not understand.
	OldestEmulationVersion Strategy = "OldestEmulationVersion"
	// Newest chooses the highest binary version, then the oldest candidate.
	Newest Strategy = "Newest"
	// Pinned leaves the holder alone; a lease that is free goes to the one that operators have pinned, else to the oldest candidate.
	Pinned Strategy = "Pinned"
)

// Unstamped is the version of a build that bears none.
const Unstamped = "0.0.0-dev"

// Time is a moment as records bear it: RFC 3339 with microseconds, for people. No two of them are compared.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON writes the moment in UTC.
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(timeLayout)) }

// Record is what a candidate says about itself.
type Record struct {
	LeaseName        string   `json:"lease_name"` // never changes
	BinaryVersion    string   `json:"binary_version"`
	EmulationVersion string   `json:"emulation_version,omitempty"` // that it behaves like; the strategy OldestEmulationVersion needs it
	Strategy         Strategy `json:"strategy"`
	PingTime         *Time    `json:"ping_time,omitempty"`  // when the round was opened that it answers
	RenewTime        *Time    `json:"renew_time,omitempty"` // when it answered
	Round            string   `json:"round,omitempty"`      // nonce of the round that it answers
}

// maxVersion bounds a version in bytes.
const maxVersion = 128

const (
	versionAllowed  = `a version such as "1.19.0" or "1.20.0-rc.1", without a leading "v", of 128 bytes at the most`
	strategyAllowed = `OldestEmulationVersion, Newest or Pinned; or the name of a strategy of your own: 1 to 63 letters, digits, ".", "/", "_" and "-"`
)

var strategyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9./_-]{0,62}$`)

// strict reports whether a text is a semantic version with all of its three numbers.
func strict(version string) bool {
	v := "v" + version
	return len(version) <= maxVersion && semver.IsValid(v) && semver.Canonical(v)+semver.Build(v) == v
}

// compareVersions orders two strict versions.
func compareVersions(a, b string) int { return semver.Compare("v"+a, "v"+b) }

// Validate returns every mistake, with field, value and what is allowed.
func (r *Record) Validate() error {
	var errs field.Errors
	errs.CheckName("lease_name", r.LeaseName)
	checkVersion(&errs, "binary_version", r.BinaryVersion)
	switch {
	case r.EmulationVersion != "":
		before := len(errs)
		checkVersion(&errs, "emulation_version", r.EmulationVersion)
		if len(errs) == before && strict(r.BinaryVersion) && compareVersions(r.EmulationVersion, r.BinaryVersion) > 0 {
			errs.Add("emulation_version", r.EmulationVersion, "the binary_version, "+r.BinaryVersion+", or an earlier one")
		}
	case r.Strategy == OldestEmulationVersion:
		errs.Missing("emulation_version", versionAllowed+"; the strategy OldestEmulationVersion needs it")
	}
	switch {
	case r.Strategy == "":
		errs.Missing("strategy", strategyAllowed)
	case !strategyName.MatchString(string(r.Strategy)):
		errs.Add("strategy", string(r.Strategy), strategyAllowed)
	}
	return errs.Err()
}

func checkVersion(errs *field.Errors, path, version string) {
	switch {
	case version == "":
		errs.Missing(path, versionAllowed)
	case !strict(version):
		errs.Add(path, version, versionAllowed)
	}
}

// DeepCopy returns a record that shares nothing with this one.
func (r *Record) DeepCopy() *Record { return field.Copy(r) }

// Merge writes another record over this one: texts that a record must have always, optional ones where they are set. It refuses a record
// of another lease, and changes nothing then.
func (r *Record) Merge(other *Record) error {
	if r.LeaseName != other.LeaseName {
		var errs field.Errors
		errs.Add("lease_name", other.LeaseName, fmt.Sprintf("%q: a candidate's lease never changes", r.LeaseName))
		return errs
	}
	r.BinaryVersion, r.Strategy = other.BinaryVersion, other.Strategy
	set := other.DeepCopy()
	r.EmulationVersion, r.Round = cmp.Or(set.EmulationVersion, r.EmulationVersion), cmp.Or(set.Round, r.Round)
	r.PingTime, r.RenewTime = cmp.Or(set.PingTime, r.PingTime), cmp.Or(set.RenewTime, r.RenewTime)
	return nil
}

// Candidate is a record as it stands in the store.
type Candidate struct {
	ID      string
	Record  Record
	Created uint64 // Consul's index at which the record was first written: the lower the older
	Session string // that holds the record; empty: nobody lives who wrote it
	Err     error  // why the record could not be decoded
}
