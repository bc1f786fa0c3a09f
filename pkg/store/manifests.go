package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// storedManifest is the record at manifests/<sha256>: the digest covers the bytes of Manifest alone.
type storedManifest struct {
	Manifest  json.RawMessage `json:"manifest"`
	Signature string          `json:"signature,omitempty"`
}

// Manifest reads a manifest by its digest and proves that it is the one asked for. A record that is not comes back as a
// *CorruptError.
func (s *Store) Manifest(ctx context.Context, digest string) (*manifest.Manifest, error) {
	m, _, err := s.SignedManifest(ctx, digest)
	return m, err
}

// SignedManifest is Manifest with the signature, which may be empty and which nobody has verified.
func (s *Store) SignedManifest(ctx context.Context, digest string) (m *manifest.Manifest, signature string, err error) {
	key := s.keys.Manifest(digest)
	pair, err := s.c.Get(ctx, key, consul.Default)
	if err != nil {
		return nil, "", err
	}
	return s.manifestOf(map[string]consul.Pair{key: pair}, digest)
}

// manifestOf decodes a manifest and its signature, if it was found.
func (s *Store) manifestOf(found map[string]consul.Pair, digest string) (*manifest.Manifest, string, error) {
	key := s.keys.Manifest(digest)
	pair, ok := found[key]
	if !ok {
		return nil, "", fmt.Errorf("read key %s: %w", key, ErrNotFound)
	}
	rec, err := decode[storedManifest](s.keys, pair)
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

// SignManifest stores a signature of a controller's manifest, and nothing else: the digest stays, so no pod changes.
// Nodes that refused the manifest look at it again by themselves.
func (s *Store) SignManifest(ctx context.Context, rcID, digest string, canonical []byte, signature string, audit Audit) error {
	ops := []consul.Op{s.audit(audit), s.ring(rcID)}
	return s.withManifest(ctx, "manifest "+digest, audit.ID, DeployManifest{Digest: digest, Canonical: canonical, Signature: signature}, ops)
}

// withManifest commits a change together with its manifest. Somebody else may store the same manifest meanwhile, for
// another controller and with another signature: then it is tried again.
func (s *Store) withManifest(ctx context.Context, what, auditID string, m DeployManifest, ops []consul.Op) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		store, err := s.storeManifest(ctx, m)
		if err != nil {
			return struct{}{}, permanent(err)
		}
		err = s.settled(ctx, what, auditID, append(store, ops...))
		if errors.Is(err, ErrConflict) && consul.RefusedOnly(err, s.keys.Manifest(m.Digest)) {
			return struct{}{}, err
		}
		return struct{}{}, permanent(err)
	}, tries()...)
	return err
}

// storeManifest returns what stores a manifest without losing a signature.
func (s *Store) storeManifest(ctx context.Context, m DeployManifest) ([]consul.Op, error) {
	key := s.keys.Manifest(m.Digest)
	unchanged := consul.CheckMissing(key)
	rec, err := get[storedManifest](ctx, s, key, consul.Consistent)
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
	stored := encode(storedManifest{Manifest: m.Canonical, Signature: m.Signature})
	// A new flag value moves the record's index, so that whoever collects unused manifests loses the race.
	return []consul.Op{unchanged, consul.SetFlags(key, stored, rand.Uint64())}, nil
}
