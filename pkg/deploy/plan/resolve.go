package plan

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// DigestSource computes the present digest of an artifact.
type DigestSource interface {
	// Digest returns a digest in the form that manifest.Artifact.Pin takes.
	Digest(ctx context.Context, artifact *manifest.Artifact) (string, error)
}

// DigestResolver finds the digest of an artifact that a document does not pin.
type DigestResolver struct {
	Source DigestSource
	// Known returns the newest digest of each artifact in the history of all services, by manifest.Artifact.Source.
	// nil: none is known.
	Known func(context.Context) (map[string]string, error)
}

// UnknownDigestError means that no history has the artifact's digest, and that the policy Never forbids to read it.
// Nothing was written.
type UnknownDigestError struct{ Artifact string }

// Error names the artifact, and what to do.
func (u *UnknownDigestError) Error() string {
	return fmt.Sprintf("artifact %s: no service has its digest in its history, and with digests: never it is not "+
		"computed; pin its digest, or use digests: missing", u.Artifact)
}

// SourceError means that the source could not compute the digest. Nothing was written.
type SourceError struct {
	Artifact string
	Err      error // of the source
}

// Error implements error.
func (s *SourceError) Error() string {
	return fmt.Sprintf("digest of artifact %s: %v", s.Artifact, s.Err)
}

// Unwrap returns the error of the source.
func (s *SourceError) Unwrap() error { return s.Err }

// Resolve returns the digest of an artifact; an empty policy means Missing. The error is an *UnknownDigestError, a
// *SourceError, or the error of Known.
func (d *DigestResolver) Resolve(ctx context.Context, artifact *manifest.Artifact, policy record.Policy) (string,
	error,
) {
	source := artifact.Source()
	if d.Known != nil && policy != record.Always {
		known, err := d.Known(ctx)
		if digest := known[source]; err != nil || digest != "" {
			return digest, err
		}
	}
	switch {
	case policy == record.Never:
		return "", &UnknownDigestError{Artifact: source}
	case d.Source == nil:
		return "", fmt.Errorf("artifact %s: there is no source to ask for its digest; pin its digest", source)
	}
	digest, err := d.Source.Digest(ctx, artifact)
	if err != nil {
		return "", &SourceError{Artifact: source, Err: err}
	}
	return digest, nil
}

// ServiceSpecResolver fills in the fields that a document leaves out.
type ServiceSpecResolver struct {
	// Domain is the cluster's domain, if there is one. A document without a host name gets <service>.<domain> in the
	// meta record.HostMeta of the pod's service.
	Domain  string
	Digests *DigestResolver // nil: every digest must be pinned
}

// Resolve returns a copy of the document with its defaults, name and digests. It returns the errors of
// DigestResolver.Resolve.
func (s *ServiceSpecResolver) Resolve(ctx context.Context, spec *record.ServiceSpec) (*record.ServiceSpec, error) {
	out := *spec
	pod := *spec.Pod
	out.Pod = &pod
	pod.Launchables = slices.Clone(spec.Pod.Launchables)
	out.ReplicaGroups, out.Replicas, out.Digests = spec.Groups(), nil, cmp.Or(spec.Digests, defaultPolicy(&pod))
	if out.Name == "" {
		first := pod.Launchables[0].Artifact
		out.Name = GenerateServiceName(first.URL + first.Path + first.Ref)
	}
	if s.Domain != "" {
		service := manifest.Service{}
		if pod.Service != nil {
			service = *pod.Service
		}
		if service.Meta[record.HostMeta] == "" {
			service.Meta = field.Merge(service.Meta,
				map[string]string{record.HostMeta: record.HostOf(out.Name, s.Domain)})
		}
		pod.Service = &service
	}
	digests := cmp.Or(s.Digests, &DigestResolver{})
	for i := range pod.Launchables {
		a := &pod.Launchables[i].Artifact
		if !a.LacksDigest() {
			continue
		}
		digest, err := digests.Resolve(ctx, a, out.Digests)
		if err != nil {
			return nil, err
		}
		a.Pin(digest)
	}
	return &out, nil
}

// defaultPolicy is Always for a pod with an image, because people move tags on purpose, and asking costs little.
func defaultPolicy(m *manifest.Manifest) record.Policy {
	if m.HasImage() {
		return record.Always
	}
	return record.Missing
}

// nameLetters are characters that people can distinguish easily.
const nameLetters = "abcdefghjkmnpqrstuvwxyz23456789"

const randomLetters = 4

var (
	extension = regexp.MustCompile(`(?i)\.(tar|tgz|gz|xz|zst|bz2|zip)$`)
	version   = regexp.MustCompile(`([-_.@:]v?[0-9]+(\.[0-9]+)+([-+.][0-9A-Za-z.]+)*|[-_.@:]?v?[0-9]+)$`)
	unnamable = regexp.MustCompile(`[^a-z0-9]+`)
)

// GenerateServiceName makes a service's name from the last element of its artifact's URL, path or image name, without
// version and extension, and four random characters. Dashes replace characters that a name cannot have.
func GenerateServiceName(artifact string) string {
	if ref, err := reference.Parse(artifact); err == nil {
		artifact = ref.Repository
	} else if u, err := url.Parse(artifact); err == nil && u.Path != "" {
		artifact = u.Path
	}
	base := path.Base(artifact)
	for extension.MatchString(base) {
		base = extension.ReplaceAllString(base, "")
	}
	base = cmp.Or(version.ReplaceAllString(base, ""), base)
	base = strings.Trim(unnamable.ReplaceAllString(strings.ToLower(base), "-"), "-")
	base = strings.TrimRight(base[:min(len(base), record.MaxNameBytes-randomLetters-1)], "-")
	random := make([]byte, randomLetters)
	_, _ = rand.Read(random) // it never fails
	for i, b := range random {
		random[i] = nameLetters[int(b)%len(nameLetters)]
	}
	return cmp.Or(base, "service") + "-" + string(random)
}
