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

// storedManifest is the record at manifests/<sha256>. The digest covers only the bytes of Manifest.
type storedManifest struct {
	Manifest  json.RawMessage `json:"manifest"`
	Signature string          `json:"signature,omitempty"`
}

// Manifest reads a manifest. If its digest is another, it returns a *CorruptError.
func (v *Views) Manifest(ctx context.Context, digest string) (*manifest.Manifest, error) {
	m, _, err := v.SignedManifest(ctx, digest)
	return m, err
}

// SignedManifest is Manifest with the signature, which may be empty and was not verified.
func (v *Views) SignedManifest(ctx context.Context, digest string) (m *manifest.Manifest, signature string, err error) {
	key := v.keys.Manifests.Key(digest)
	pair, err := v.c.Get(ctx, key, consul.Default)
	if err != nil {
		return nil, "", err
	}
	return v.manifestOf(map[string]consul.Pair{key: pair}, digest)
}

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

// SignManifests stores only signatures of a controller's manifests. The digests do not change, so no pod changes. Nodes
// that refused a manifest try it again by themselves.
func (o *Operator) SignManifests(ctx context.Context, rcID string, manifests []DeployManifest, audit Audit) error {
	return o.change(ctx, "manifests of rc "+rcID, []consul.Op{o.ring(rcID)}, manifests, nil, audit)
}

func (s *db) storeManifests(ctx context.Context,
	manifests []DeployManifest,
) (ops []consul.Op, keys []string, err error) {
	for _, m := range manifests {
		key := s.keys.Manifests.Key(m.Digest)
		if slices.Contains(keys, key) {
			continue // a transaction may write a key only once
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

// storeManifestsBefore stores manifests that do not fit into the main transaction, before it. It returns their keys,
// and the conditions that they are unchanged. The main transaction must have these conditions, because the collector of
// unused manifests may remove the manifests before it lands. If the main transaction is refused, the caller stores the
// manifests again.
func (s *db) storeManifestsBefore(ctx context.Context,
	manifests []DeployManifest,
) (same []consul.Op, keys []string, err error) {
	for part := range slices.Chunk(manifests, manifestsPerTxn) {
		part = slices.DeleteFunc(slices.Clone(part),
			func(m DeployManifest) bool { return slices.Contains(keys, s.keys.Manifests.Key(m.Digest)) })
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

// storeManifest returns the operations that store a manifest without losing a signature.
func (s *db) storeManifest(ctx context.Context, m DeployManifest) ([]consul.Op, error) {
	key := s.keys.Manifests.Key(m.Digest)
	unchanged := consul.CheckMissing(key)
	rec, err := s.manifests.Get(ctx, consul.Consistent, m.Digest)
	switch {
	case errors.Is(err, ErrNotFound):
	case err != nil && !IsCorrupt(err): // a corrupt record is written again
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
	// New flags change the record's index. The collector of unused manifests deletes only at the old index, so it keeps
	// this manifest.
	return []consul.Op{unchanged, consul.SetFlags(key, stored, rand.Uint64()).Needs(feature.NeedOf(asked))}, nil
}

// ManifestRef is a stored manifest in one version.
type ManifestRef struct {
	Digest string
	Index  uint64 // changes with each apply that names the manifest
}

var digests = regexp.MustCompile(`[0-9a-f]{64}`)

// UnusedManifests returns the manifests that no record names. It searches records as text, so that a damaged record, or
// a record of a later version, also keeps a manifest. It reads the other records only if there is a manifest that no
// controller names.
func (l *Leader) UnusedManifests(ctx context.Context) ([]ManifestRef, error) {
	stored, err := l.ids(ctx, l.keys.Manifests.Key())
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
	// Read the indices before the other records. A later use changes the index, and DeleteManifest is refused.
	if err := l.dropUsed(ctx, unused, l.keys.RCs.Key()); err != nil || len(unused) == 0 {
		return nil, err
	}
	var keys []string
	for digest := range unused {
		keys = append(keys, l.keys.Manifests.Key(digest))
	}
	found, err := l.c.GetMany(ctx, keys, consul.Consistent)
	if err != nil {
		return nil, err
	}
	p := l.keys.Prefix()
	for _, prefix := range []string{
		l.keys.RCs.Key(), l.keys.Pods.Key(), p +
			"intent/", l.keys.Realities.Key(), l.keys.Nodes.Key(), l.keys.Requests.Key(), p +
			"rollouts/", p + "deployments/",
	} {
		if err := l.dropUsed(ctx, unused, prefix); err != nil || len(unused) == 0 {
			return nil, err
		}
	}
	for _, digest := range stored {
		if pair, ok := found[l.keys.Manifests.Key(digest)]; ok && unused[digest] {
			refs = append(refs, ManifestRef{Digest: digest, Index: pair.ModifyIndex})
		}
	}
	return refs, nil
}

func (l *Leader) dropUsed(ctx context.Context, unused map[string]bool, prefix string) error {
	pairs, err := l.c.List(ctx, prefix, consul.Consistent)
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

// DeleteManifest removes a manifest in this version. It returns ErrRefused if an apply has used it meanwhile.
func (l *Leader) DeleteManifest(ctx context.Context, ref ManifestRef) error {
	_, err := l.fenced(ctx, []consul.Op{consul.DeleteCAS(l.keys.Manifests.Key(ref.Digest), ref.Index)})
	return err
}

func (s *db) othersOf(found map[string]consul.Pair,
	digests []string,
) (map[string]*manifest.Manifest, map[string]error) {
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
