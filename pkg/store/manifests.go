package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/feature"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// storedManifest is the record at manifests/<sha256>: the digest covers the bytes of Manifest alone.
type storedManifest struct {
	Manifest  json.RawMessage `json:"manifest"`
	Signature string          `json:"signature,omitempty"`
}

// Manifest reads a manifest by its digest and proves that it is the one asked for. A record that is not comes back as a
// *CorruptError.
func (s *Views) Manifest(ctx context.Context, digest string) (*manifest.Manifest, error) {
	m, _, err := s.SignedManifest(ctx, digest)
	return m, err
}

// SignedManifest is Manifest with the signature, which may be empty and which nobody has verified.
func (s *Views) SignedManifest(ctx context.Context, digest string) (m *manifest.Manifest, signature string, err error) {
	key := s.keys.Manifests.Key(digest)
	pair, err := s.c.Get(ctx, key, consul.Default)
	if err != nil {
		return nil, "", err
	}
	return s.manifestOf(map[string]consul.Pair{key: pair}, digest)
}

// manifestOf decodes a manifest and its signature, if it was found.
func (s *db) manifestOf(found map[string]consul.Pair, digest string) (*manifest.Manifest, string, error) {
	key := s.keys.Manifests.Key(digest)
	pair, ok := found[key]
	if !ok {
		return nil, "", fmt.Errorf("read key %s: %w", key, ErrNotFound)
	}
	rec, err := s.manifests.decode(pair)
	if err != nil {
		return nil, "", err
	}
	if got := manifest.Digest(rec.Value.Manifest); got != digest {
		return nil, "", &CorruptError{Key: key, Err: fmt.Errorf("its content has digest %s", got)}
	}
	m := &manifest.Manifest{}
	if err := json.Unmarshal(rec.Value.Manifest, m); err != nil {
		return nil, "", &CorruptError{Key: key, Err: err}
	}
	return m, rec.Value.Signature, nil
}

// SignManifests stores signatures of a controller's manifests, and nothing else: the digests stay, so no pod changes.
// Nodes that refused the manifest look at it again by themselves.
func (s *Operator) SignManifests(ctx context.Context, rcID string, manifests []DeployManifest, audit Audit) error {
	return s.change(ctx, "manifests of rc "+rcID, []consul.Op{s.ring(rcID)}, manifests, nil, audit)
}

// storeManifests returns what stores manifests, each once, and their keys.
func (s *db) storeManifests(ctx context.Context, manifests []DeployManifest) (ops []consul.Op, keys []string, err error) {
	for _, m := range manifests {
		key := s.keys.Manifests.Key(m.Digest)
		if slices.Contains(keys, key) {
			continue // one transaction writes a key once
		}
		some, err := s.storeManifest(ctx, m)
		if err != nil {
			return nil, nil, err
		}
		ops, keys = append(ops, some...), append(keys, key)
	}
	return ops, keys, nil
}

// manifestsPerTxn is how many manifests one transaction stores; see rc.MaxGroupBytes for their size.
const manifestsPerTxn = 32

// storeManifestsBefore stores manifests that do not fit into the transaction which is about them, in transactions
// before it. It returns the conditions that they are as they were stored, and their keys: whoever collects unused ones
// may have been first, and then they are stored again. An error for which again is true means that others wrote them
// meanwhile, or that nobody knows.
func (s *db) storeManifestsBefore(ctx context.Context, manifests []DeployManifest) (same []consul.Op, keys []string, err error) {
	for part := range slices.Chunk(manifests, manifestsPerTxn) {
		part = slices.DeleteFunc(slices.Clone(part), func(m DeployManifest) bool { return slices.Contains(keys, s.keys.Manifests.Key(m.Digest)) })
		ops, own, err := s.storeManifests(ctx, part)
		if err != nil {
			return nil, nil, err
		}
		written, err := s.c.Commit(ctx, ops)
		if err != nil {
			return nil, nil, err
		}
		for _, key := range own {
			same = append(same, consul.CheckIndex(key, written[key]))
		}
		keys = append(keys, own...)
	}
	return same, keys, nil
}

// storeManifest returns what stores a manifest without losing a signature.
func (s *db) storeManifest(ctx context.Context, m DeployManifest) ([]consul.Op, error) {
	key := s.keys.Manifests.Key(m.Digest)
	unchanged := consul.CheckMissing(key)
	rec, err := s.manifests.Get(ctx, consul.Consistent, m.Digest)
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil && !IsCorrupt(err): // what is corrupt is written anew
		return nil, err
	default:
		unchanged = consul.CheckIndex(key, rec.Index)
		if m.Signature == "" && manifest.Digest(rec.Value.Manifest) == m.Digest {
			m.Signature = rec.Value.Signature
		}
	}
	var asked manifest.Manifest
	if err := json.Unmarshal(m.Canonical, &asked); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", m.Digest, err)
	}
	stored, err := encode(storedManifest{Manifest: m.Canonical, Signature: m.Signature})
	if err != nil {
		return nil, err
	}
	// A new flag value moves the record's index, so that whoever collects unused manifests loses the race.
	return []consul.Op{unchanged, consul.SetFlags(key, stored, rand.Uint64()).Needs(feature.NeedOf(asked))}, nil
}

// ManifestRef is a stored manifest in one version.
type ManifestRef struct {
	Digest string
	Index  uint64 // moves with every apply that names it
}

// digests finds everything that looks like a manifest's digest.
var digests = regexp.MustCompile(`[0-9a-f]{64}`)

// UnusedManifests returns the manifests that no record names. Records are searched as text, not read: one that is
// damaged, or of a later version, keeps alive what it names. Others may begin to use a manifest at any time; see
// DeleteManifest. Most calls read no more than names: what pods run is looked at only where a manifest exists that no
// controller asks for.
func (s *Leader) UnusedManifests(ctx context.Context) ([]ManifestRef, error) {
	stored, err := s.ids(ctx, s.keys.Manifests.Key())
	if err != nil || len(stored) == 0 {
		return nil, err
	}
	unused := map[string]bool{}
	for _, digest := range stored {
		if digests.MatchString(digest) && len(digest) == 64 {
			unused[digest] = true
		}
	}
	var refs []ManifestRef
	// Indices first: whatever begins to use a manifest after they were read moves them.
	if err := s.dropUsed(ctx, unused, s.keys.RCs.Key()); err != nil || len(unused) == 0 {
		return nil, err
	}
	var keys []string
	for digest := range unused {
		keys = append(keys, s.keys.Manifests.Key(digest))
	}
	found, err := s.c.GetMany(ctx, keys, consul.Consistent)
	if err != nil {
		return nil, err
	}
	p := s.keys.Prefix()
	for _, prefix := range []string{
		s.keys.RCs.Key(), s.keys.Pods.Key(), p + "intent/", s.keys.Realities.Key(), s.keys.Nodes.Key(), s.keys.Requests.Key(), p + "rollouts/", p + "deployments/",
	} {
		if err := s.dropUsed(ctx, unused, prefix); err != nil || len(unused) == 0 {
			return nil, err
		}
	}
	for _, digest := range stored {
		if pair, ok := found[s.keys.Manifests.Key(digest)]; ok && unused[digest] {
			refs = append(refs, ManifestRef{Digest: digest, Index: pair.ModifyIndex})
		}
	}
	return refs, nil
}

// dropUsed takes out what is named below a prefix.
func (s *Leader) dropUsed(ctx context.Context, unused map[string]bool, prefix string) error {
	pairs, err := s.c.List(ctx, prefix, consul.Consistent)
	if err != nil {
		return err
	}
	for _, p := range pairs {
		for _, digest := range digests.FindAll(p.Value, -1) {
			delete(unused, string(digest))
		}
	}
	return nil
}

// DeleteManifest removes a manifest in exactly this version. It returns ErrRefused when an apply touched it meanwhile,
// which then wins.
func (s *Leader) DeleteManifest(ctx context.Context, ref ManifestRef) error {
	_, err := s.fenced(ctx, []consul.Op{consul.DeleteCAS(s.keys.Manifests.Key(ref.Digest), ref.Index)})
	return err
}

// othersOf picks manifests out of what was read.
func (s *db) othersOf(found map[string]consul.Pair, digests []string) (map[string]*manifest.Manifest, map[string]error) {
	manifests, errs := map[string]*manifest.Manifest{}, map[string]error{}
	for _, digest := range digests {
		if m, _, err := s.manifestOf(found, digest); err == nil {
			manifests[digest] = m
		} else {
			errs[digest] = err
		}
	}
	return manifests, errs
}
