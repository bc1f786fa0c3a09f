// Package reference parses the names of images and platforms. It is pure: it reads no file and asks no registry.
package reference

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// ErrInvalid means that a text is not a reference of an image, or not a platform.
var ErrInvalid = errors.New("not valid")

// Limits of the parts of a reference, in bytes. The registries' specification has the same limits.
const (
	maxRegistryBytes   = 255
	maxRepositoryBytes = 255
	maxTagBytes        = 128
)

const (
	digestPrefix = "sha256:"
	dockerHub    = "docker.io"
)

var (
	hostPattern       = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	repositoryPattern = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	digestPattern     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// Ref is a reference of an image. Tag, Digest or both are set.
type Ref struct {
	Registry   string // host, or host:port
	Repository string // for example library/nginx
	Tag        string
	Digest     string // "sha256:" and 64 hexadecimal digits
}

// Parse parses registry/name:tag@sha256:digest. Tag or digest may be missing, but not both, because the tag "latest" is
// never assumed. The registry must be named, because a short name means another image on each node. Errors to test for:
// ErrInvalid.
func Parse(text string) (Ref, error) {
	const form = "registry/name:tag@sha256:digest, with a tag, a digest or both"
	host, path, ok := strings.Cut(text, "/")
	if !ok || !namesRegistry(host) {
		return Ref{}, refuse(text, "it names no registry", form)
	}
	ref := Ref{Registry: canonicalHost(host)}
	path, ref.Digest, ok = strings.Cut(path, "@")
	if ok && !IsDigest(ref.Digest) {
		return Ref{}, refuse(text, "bad digest", "sha256: and 64 hexadecimal digits in lower case")
	}
	ref.Repository, ref.Tag, ok = strings.Cut(path, ":")
	if ok && (len(ref.Tag) > maxTagBytes || !tagPattern.MatchString(ref.Tag)) {
		return Ref{}, refuse(text, "bad tag", "up to 128 letters, digits and _.-, the first one not . or -")
	}
	if ref.Tag == "" && ref.Digest == "" {
		return Ref{}, refuse(text, "neither tag nor digest", form)
	}
	if ref.Registry == dockerHub && !strings.Contains(ref.Repository, "/") {
		ref.Repository = "library/" + ref.Repository // so do all clients of this registry
	}
	if len(ref.Registry) > maxRegistryBytes || !validHost(ref.Registry) {
		return Ref{}, refuse(text, "bad registry", "a host name or address of at most 255 bytes, with a port or without")
	}
	if len(ref.Repository) > maxRepositoryBytes || !repositoryPattern.MatchString(ref.Repository) {
		return Ref{}, refuse(text, "bad name", "at most 255 bytes: small letters and digits, with single . _ - / between")
	}
	return ref, nil
}

// namesRegistry reports whether the first part of a reference is a host. Docker uses the same rule.
func namesRegistry(host string) bool {
	return strings.ContainsAny(host, ".:") || host == "localhost"
}

// canonicalHost returns the host in lower case, and one name for Docker's registry.
func canonicalHost(host string) string {
	host = strings.ToLower(host)
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return dockerHub
	}
	return host
}

func validHost(registry string) bool {
	host := registry
	if strings.LastIndexByte(registry, ':') > strings.LastIndexByte(registry, ']') {
		name, port, err := net.SplitHostPort(registry)
		if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || n == 0 || port[0] == '0' {
			return false
		}
		host = strings.TrimSuffix(registry, ":"+port)
		if host == name {
			return hostPattern.MatchString(host)
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		return ok && strings.Contains(inner, ":") && net.ParseIP(inner) != nil
	}
	return hostPattern.MatchString(host)
}

// IsDigest reports whether a text is a digest with its algorithm.
func IsDigest(text string) bool { return digestPattern.MatchString(text) }

// Hex returns the hexadecimal digits of a valid digest.
func Hex(digest string) string { return strings.TrimPrefix(digest, digestPrefix) }

// Name returns registry and repository, without tag and digest.
func (r Ref) Name() string { return r.Registry + "/" + r.Repository }

// String returns the canonical text. Parse returns the same Ref for it.
func (r Ref) String() string {
	text := r.Name()
	if r.Tag != "" {
		text += ":" + r.Tag
	}
	if r.Digest != "" {
		text += "@" + r.Digest
	}
	return text
}

// Pinned returns the reference with this digest.
func (r Ref) Pinned(digest string) Ref {
	r.Digest = digest
	return r
}

// Wanted returns the digest, or the tag if there is no digest.
func (r Ref) Wanted() string { return cmp.Or(r.Digest, r.Tag) }

// maxShown is how much of a bad text an error shows, in bytes.
const maxShown = 256

// InvalidError is an ErrInvalid with its parts.
type InvalidError struct{ Text, Problem, Allowed string }

// Error names the text, its problem, and what is allowed.
func (i *InvalidError) Error() string {
	text := i.Text
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "..."
	}
	return fmt.Sprintf("%q: %v: %s; allowed: %s", text, ErrInvalid, i.Problem, i.Allowed)
}

// Unwrap returns ErrInvalid.
func (i *InvalidError) Unwrap() error { return ErrInvalid }

func refuse(text, problem, allowed string) error { return &InvalidError{text, problem, allowed} }
