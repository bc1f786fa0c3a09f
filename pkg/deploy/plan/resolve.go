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
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// DigestSource finds out what an artifact is now.
type DigestSource interface {
	// Digest returns the SHA-256 of the artifact, 64 lower-case hex digits.
	Digest(ctx context.Context, artifact string) (string, error)
}

// DigestResolver finds the digest of an artifact that a document does not pin.
type DigestResolver struct {
	Source DigestSource
	// Known returns the digests that the history of any service has, the newest of each artifact by its URL. It is not
	// called where nothing is looked up. Nil: nothing is known.
	Known func(context.Context) (map[string]string, error)
}

// UnknownDigestError is an artifact that the history of no service knows, under a policy that asks nobody else.
// Nothing was written.
type UnknownDigestError struct{ Artifact string }

// Error says what to do, too.
func (e *UnknownDigestError) Error() string {
	return fmt.Sprintf("artifact %s: the history of no service has its digest, and digests: never asks no source; pin its sha256, or use digests: missing", e.Artifact)
}

// SourceError is an artifact whose source does not say what its digest is. Nothing was written.
type SourceError struct {
	Artifact string
	Err      error // of the source
}

// Error implements error.
func (e *SourceError) Error() string {
	return fmt.Sprintf("digest of artifact %s: %v", e.Artifact, e.Err)
}

// Unwrap returns the error of the source.
func (e *SourceError) Unwrap() error { return e.Err }

// Resolve returns the digest of an artifact under a policy; empty means Missing. Under Never the error is an
// *UnknownDigestError, and else that of the source is in a *SourceError. That of Known is returned as it is.
func (r *DigestResolver) Resolve(ctx context.Context, artifact string, policy record.Policy) (string, error) {
	if r.Known != nil && policy != record.Always {
		known, err := r.Known(ctx)
		if digest := known[artifact]; err != nil || digest != "" {
			return digest, err
		}
	}
	switch {
	case policy == record.Never:
		return "", &UnknownDigestError{Artifact: artifact}
	case r.Source == nil:
		return "", fmt.Errorf("artifact %s: there is no source to ask for its digest; pin its sha256", artifact)
	}
	digest, err := r.Source.Digest(ctx, artifact)
	if err != nil {
		return "", &SourceError{Artifact: artifact, Err: err}
	}
	return digest, nil
}

// ServiceSpecResolver fills in what a document leaves out.
type ServiceSpecResolver struct {
	// Domain, if any, is that of the cluster: the pod's service gets the meta record.HostMeta, <service>.<domain>,
	// unless the document has it.
	Domain  string
	Digests *DigestResolver // nil: every digest must be pinned
}

// Resolve returns the document with its defaults, its name and its digests. The original stays as it is. Errors are those of
// DigestResolver.Resolve.
func (r *ServiceSpecResolver) Resolve(ctx context.Context, spec *record.ServiceSpec) (*record.ServiceSpec, error) {
	out := *spec
	pod := *spec.Pod
	out.Pod = &pod
	pod.Launchables = slices.Clone(spec.Pod.Launchables)
	out.ReplicaGroups, out.Replicas, out.Digests = spec.Groups(), nil, cmp.Or(spec.Digests, record.Missing)
	if out.Name == "" {
		first := pod.Launchables[0].Artifact
		out.Name = GenerateServiceName(first.URL + first.Path)
	}
	if r.Domain != "" {
		service := manifest.Service{}
		if pod.Service != nil {
			service = *pod.Service
		}
		if service.Meta[record.HostMeta] == "" {
			service.Meta = field.Merge(service.Meta, map[string]string{record.HostMeta: record.HostOf(out.Name, r.Domain)})
		}
		pod.Service = &service
	}
	digests := cmp.Or(r.Digests, &DigestResolver{})
	for i := range pod.Launchables {
		a := &pod.Launchables[i].Artifact
		if a.Kind != manifest.ArtifactTar || a.SHA256 != "" {
			continue
		}
		digest, err := digests.Resolve(ctx, a.URL, out.Digests)
		if err != nil {
			return nil, err
		}
		a.SHA256 = digest
	}
	return &out, nil
}

// nameLetters are those of the random end of a name: none of them is taken for another.
const nameLetters = "abcdefghjkmnpqrstuvwxyz23456789"

// randomLetters is how many there are.
const randomLetters = 4

var (
	extension = regexp.MustCompile(`(?i)\.(tar|tgz|gz|xz|zst|bz2|zip)$`)
	version   = regexp.MustCompile(`([-_.@:]v?[0-9]+(\.[0-9]+)+([-+.][0-9A-Za-z.]+)*|[-_.@:]?v?[0-9]+)$`)
	unnamable = regexp.MustCompile(`[^a-z0-9]+`)
)

// GenerateServiceName makes a name for a service of the URL or path of its artifact: its last element without version and extension, and
// four random characters. What cannot be in a name becomes a dash.
func GenerateServiceName(artifact string) string {
	if u, err := url.Parse(artifact); err == nil && u.Path != "" {
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
