package runc

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Oldest is the oldest version of runc that works: the version of Debian 12, with which the tests run. Older versions
// lack read-only binds with the mounts below them (1.1.0).
var Oldest = Version{1, 1, 5}

// Version is a version of runc.
type Version struct{ Major, Minor, Patch int }

// String is the version as runc prints it, without what follows the numbers.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// Before reports whether v is older than another version.
func (v Version) Before(other Version) bool {
	if v.Major != other.Major {
		return v.Major < other.Major
	}
	if v.Minor != other.Minor {
		return v.Minor < other.Minor
	}
	return v.Patch < other.Patch
}

// Version asks runc for its version. It returns ErrTooOld with the version if it is older than Oldest. Distributions
// mend old versions, so the numbers do not show which faults a runc has.
func (r *Runc) Version(ctx context.Context) (Version, error) {
	out, stderr, err := r.run(ctx, nil, []string{"--version"})
	if err != nil {
		return Version{}, fmt.Errorf("runc --version: %w: %s", err, cmp.Or(stderr, "no text"))
	}
	v, err := parseVersion(string(out))
	if err != nil {
		return Version{}, fmt.Errorf("runc --version: %w", err)
	}
	if v.Before(Oldest) {
		return v, fmt.Errorf("runc --version: version %s is not valid; allowed: %s or newer: %w", v, Oldest, ErrTooOld)
	}
	return v, nil
}

// firstLine is the first line of runc's answer, such as "runc version 1.1.5+ds1" or "runc version 1.3.0-rc.1". A
// release candidate is taken for its release.
var firstLine = regexp.MustCompile(`^runc version ([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})([-+~][^\n]*)?(\n|$)`)

func parseVersion(text string) (v Version, err error) {
	parts := firstLine.FindStringSubmatch(text)
	if parts == nil {
		return Version{}, fmt.Errorf("answer %q is not valid; allowed: a first line such as %q",
			field.CutBytes(text, 200), "runc version "+Oldest.String())
	}
	for i, into := range []*int{&v.Major, &v.Minor, &v.Patch} {
		*into, _ = strconv.Atoi(parts[i+1]) // digits only
	}
	return v, nil
}
