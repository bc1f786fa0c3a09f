// Package ballot decides who leads: a pure function, Elect, of the records of candidates and the state of the lease.
package ballot

import (
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"golang.org/x/mod/semver"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Strategy names how the leader is chosen among the candidates.
type Strategy string

// A record may name another strategy. Then another program must assign the lease.
const (
	// OldestEmulationVersion chooses the lowest emulation version, then the lowest binary version, then the oldest
	// candidate, so that all candidates understand what the leader does.
	OldestEmulationVersion Strategy = "OldestEmulationVersion"
	// Newest chooses the highest binary version, then the oldest candidate.
	Newest Strategy = "Newest"
	// Pinned keeps the holder. A free lease goes to the pinned candidate, else to the oldest.
	Pinned Strategy = "Pinned"
)

// Unstamped is the version of a program that was built without a version.
const Unstamped = "0.0.0-dev"

// Time is RFC 3339 with microseconds in JSON. Times are only for people: Elect does not compare them.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON writes the moment in UTC.
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(timeLayout)) }

// Record is a candidate's record.
type Record struct {
	LeaseName     string `json:"lease_name"` // never changes
	BinaryVersion string `json:"binary_version"`
	// EmulationVersion is the version whose behaviour the candidate has. OldestEmulationVersion needs it.
	EmulationVersion string   `json:"emulation_version,omitempty"`
	Strategy         Strategy `json:"strategy"`
	PingTime         *Time    `json:"ping_time,omitempty"`  // when the answered round was opened
	RenewTime        *Time    `json:"renew_time,omitempty"` // when the candidate answered
	Round            string   `json:"round,omitempty"`      // nonce of the answered round
}

// maxVersion is in bytes.
const maxVersion = 128

const (
	versionAllowed  = `a version such as "1.19.0" or "1.20.0-rc.1", without a leading "v", of 128 bytes at the most`
	strategyAllowed = `OldestEmulationVersion, Newest or Pinned; or the name of a strategy of your own: ` +
		`1 to 63 letters, digits, ".", "/", "_" and "-"`
)

var strategyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9./_-]{0,62}$`)

// strict reports whether a text is a semantic version with all three numbers.
func strict(version string) bool {
	v := "v" + version
	return len(version) <= maxVersion && semver.IsValid(v) && semver.Canonical(v)+semver.Build(v) == v
}

func compareVersions(a, b string) int { return semver.Compare("v"+a, "v"+b) }

// Validate returns all mistakes.
func (r *Record) Validate() error {
	var errs field.Errors
	errs.CheckName("lease_name", r.LeaseName)
	checkVersion(&errs, "binary_version", r.BinaryVersion)
	switch {
	case r.EmulationVersion != "":
		before := len(errs)
		checkVersion(&errs, "emulation_version", r.EmulationVersion)
		if len(errs) == before && strict(r.BinaryVersion) && compareVersions(r.EmulationVersion, r.BinaryVersion) > 0 {
			errs.Add("emulation_version", r.EmulationVersion,
				"the binary_version, "+r.BinaryVersion+", or an earlier one")
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

// MayBecome returns an error if the other record is of another lease.
func (r *Record) MayBecome(other *Record) error {
	var errs field.Errors
	if r.LeaseName != "" && r.LeaseName != other.LeaseName {
		errs.Add("lease_name", other.LeaseName, fmt.Sprintf("%q: a candidate's lease never changes", r.LeaseName))
	}
	return errs.Err()
}

// Candidate is a candidate's record with its state in the store.
type Candidate struct {
	ID      string
	Record  Record
	Created uint64 // Consul's index at which the record was first written; the older candidate has the lower index
	Session string // the session that holds the record; empty: the candidate does not live
	Err     error  // why the record could not be decoded
}
