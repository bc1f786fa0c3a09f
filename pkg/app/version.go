package app

import (
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"
)

// described is what `git describe --tags --always --dirty` said of the sources. The Makefile has the linker set it; empty: unknown.
var described string

// unreleased is the version of a build that knows no tag.
const unreleased = "0.0.0-dev"

// Version is what daemons and rcctl report and write into their records, in the form of semver.org.
var Version = versionOf(described)

// description is a tag such as v1.2.3 or v1.2.3-rc.1, with what git adds: how many commits are after it, the last of these, and whether
// files differ from that.
var description = regexp.MustCompile(`^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+?)??(?:-([1-9]\d*)-g([0-9a-f]+))?(-dirty)?$`)

// commit is what git says where no tag is before a commit.
var commit = regexp.MustCompile(`^([0-9a-f]{4,64})(-dirty)?$`)

// versionOf turns what git said into a version. Commits after a release belong to the next one: they sort behind that which is out, and
// before that which comes.
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

// metadata tells builds of one version apart.
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
