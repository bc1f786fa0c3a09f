package app

import (
	"testing"

	"golang.org/x/mod/semver"
)

// Each output of git becomes a valid version.
func TestVersionOf(t *testing.T) {
	t.Parallel()
	for described, want := range map[string]string{
		"":                              "0.0.0-dev",
		"1d26525":                       "0.0.0-dev+g1d26525",
		"1d26525-dirty":                 "0.0.0-dev+g1d26525.dirty",
		"v0.2.0":                        "0.2.0",
		"0.2.0":                         "0.2.0",
		"v0.2.0-dirty":                  "0.2.0+dirty",
		"v0.2.0-5-g1d26525":             "0.2.1-dev.5+g1d26525",
		"v0.2.0-5-g1d26525-dirty":       "0.2.1-dev.5+g1d26525.dirty",
		"v1.0.0-rc.1":                   "1.0.0-rc.1",
		"v1.0.0-rc.1-12-g1d26525":       "1.0.0-rc.1.dev.12+g1d26525",
		"v1.0.0-rc.1-12-g1d26525-dirty": "1.0.0-rc.1.dev.12+g1d26525.dirty",
		"v1.0.0-rc-1":                   "1.0.0-rc-1",
		"v1.0.0-dirty-dirty":            "1.0.0-dirty+dirty",
		"nightly-5-g1d26525":            "0.0.0-dev",
		"v01.2.3":                       "0.0.0-dev",
		"v1.2.3-01":                     "0.0.0-dev",
		"v1.2.3-rc..1":                  "0.0.0-dev",
		"v1.2.4294967296-1-gabcd":       "0.0.0-dev",
		"v0.2.0; rm":                    "0.0.0-dev",
	} {
		got := versionOf(described)
		if got != want || !semver.IsValid("v"+got) {
			t.Errorf("versionOf(%q) = %q, want %q in the form of semver.org", described, got, want)
		}
	}
	if !semver.IsValid("v" + Version) {
		t.Errorf("this build has the version %q", Version)
	}
}
