package app

import (
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"
)

// described is the output of `git describe --tags --always --dirty`, set by the linker (Makefile); empty: unknown.
var described string

// unreleased is the version of a build without a tag.
const unreleased = "0.0.0-dev"

// Version is the version that daemons and rcctl report and write into their records (semver.org).
var Version = versionOf(described)

// description matches a tag such as v1.2.3-rc.1, and what git adds: the number of commits after the tag, the last
// commit, and whether files differ from it.
var description = regexp.MustCompile(
	`^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+?)??(?:-([1-9]\d*)-g([0-9a-f]+))?(-dirty)?$`,
)

// commit matches git's output if no tag is before the commit.
var commit = regexp.MustCompile(`^([0-9a-f]{4,64})(-dirty)?$`)

// versionOf turns git's output into a version. A commit after a release sorts after it and before the next one.
func versionOf(described string) string {
	if m := commit.FindStringSubmatch(described); m != nil {
		return unreleased + metadata(m[1], m[2])
	}
	m := description.FindStringSubmatch(described)
	if m == nil {
		return unreleased
	}
	patch, candidate, after := m[3], m[4], m[5]
	switch {
	case after == "":
	case candidate != "":
		candidate += ".dev." + after
	default:
		number, err := strconv.ParseUint(patch, 10, 32)
		if err != nil {
			return unreleased
		}
		patch, candidate = strconv.FormatUint(number+1, 10), "-dev."+after
	}
	version := m[1] + "." + m[2] + "." + patch + candidate + metadata(m[6], m[7])
	if !semver.IsValid("v" + version) {
		return unreleased
	}
	return version
}

func metadata(commit, dirty string) string {
	var parts []string
	if commit != "" {
		parts = append(parts, "g"+commit)
	}
	if dirty != "" {
		parts = append(parts, "dirty")
	}
	if len(parts) == 0 {
		return ""
	}
	return "+" + strings.Join(parts, ".")
}
