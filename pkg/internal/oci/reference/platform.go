package reference

import (
	"cmp"
	"regexp"
	"strings"
)

// maxPartBytes limits each part of a platform.
const maxPartBytes = 32

var partPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]*$`)

// Platform is what an image was built for.
type Platform struct {
	OS, Architecture string
	Variant          string // such as v7; empty if the architecture has none
}

// ParsePlatform parses os/architecture or os/architecture/variant. Errors to test for: ErrInvalid.
func ParsePlatform(text string) (Platform, error) {
	const form = "linux/architecture or linux/architecture/variant, such as linux/arm64"
	parts := strings.Split(text, "/")
	if len(parts) < 2 || len(parts) > 3 {
		return Platform{}, refuse(text, "not a platform", form)
	}
	for _, part := range parts {
		if len(part) > maxPartBytes || !partPattern.MatchString(part) {
			return Platform{}, refuse(text, "not a platform", form)
		}
	}
	if parts[0] != "linux" {
		return Platform{}, refuse(text, "another operating system", form)
	}
	p := Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}

// String returns the text that ParsePlatform parses.
func (p Platform) String() string {
	text := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		text += "/" + p.Variant
	}
	return text
}

// usual has the variant that an architecture means if none is named.
var usual = map[string]string{"amd64": "v1", "arm64": "v8", "arm": "v7"}

func (p Platform) variant() string { return cmp.Or(p.Variant, usual[p.Architecture]) }

// Rank returns how well an image for the platform of runs where p is wanted. 0: not at all; 2: it is the platform
// itself; 1: it is an older variant of arm, which newer processors run.
func (p Platform) Rank(of Platform) int {
	switch {
	case p.OS != of.OS || p.Architecture != of.Architecture:
		return 0
	case p.variant() == of.variant():
		return 2
	case p.Architecture == "arm" && of.variant() < p.variant():
		return 1
	}
	return 0
}
