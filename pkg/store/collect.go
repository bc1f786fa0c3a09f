package store

import (
	"context"
	"regexp"

	"github.com/rcfarm/rcfarm/pkg/consul"
)

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
func (s *Store) UnusedManifests(ctx context.Context) ([]ManifestRef, error) {
	stored, err := s.ids(ctx, s.keys.Manifest(""))
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
	if err := s.dropUsed(ctx, unused, s.keys.RCs()); err != nil || len(unused) == 0 {
		return nil, err
	}
	var keys []string
	for digest := range unused {
		keys = append(keys, s.keys.Manifest(digest))
	}
	found, err := s.c.GetMany(ctx, keys, consul.Consistent)
	if err != nil {
		return nil, err
	}
	p := s.keys.Prefix()
	for _, prefix := range []string{
		s.keys.RCs(), s.keys.AllPods(), p + "intent/", s.keys.AllRealities(), s.keys.AllNodes(), s.keys.AllRequests(), p + "rollouts/", p + "deployments/",
	} {
		if err := s.dropUsed(ctx, unused, prefix); err != nil || len(unused) == 0 {
			return nil, err
		}
	}
	for _, digest := range stored {
		if pair, ok := found[s.keys.Manifest(digest)]; ok && unused[digest] {
			refs = append(refs, ManifestRef{Digest: digest, Index: pair.ModifyIndex})
		}
	}
	return refs, nil
}

// dropUsed takes out what is named below a prefix.
func (s *Store) dropUsed(ctx context.Context, unused map[string]bool, prefix string) error {
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
// which then wins. It bears no fence, nor does the removal of audit records: a removal that lands late, or comes from two farms
// that both think that it is theirs to do, removes the version that was found unused, or nothing; every apply moves that.
func (s *Store) DeleteManifest(ctx context.Context, ref ManifestRef) error {
	_, err := s.c.Commit(ctx, []consul.Op{consul.DeleteCAS(s.keys.Manifest(ref.Digest), ref.Index)})
	return err
}
