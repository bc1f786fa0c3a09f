package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// ownerFile has the id of the pod that owns an identity's volumes. It is beside them, because they outlive the
// identity's record. No volume has a name with a dot.
const ownerFile = ".pod-id"

// MayUseData returns an error if the manifest has another pod id than the pod that owns the identity's user, home and
// volumes, so that the signer of one pod cannot read another's data. It checks only on nodes with a trust policy. owner
// is from the identity's record; if empty, files on the disk show the owner.
func (n *Node) MayUseData(id pod.Identity, owner string, m *manifest.Manifest) error {
	if n.cfg.Trust == nil {
		return nil
	}
	var left []string
	var err error
	if owner == "" {
		owner, left, err = n.dataOwnerOf(id)
	}
	switch {
	case err != nil:
		return err
	case owner == m.ID:
		return nil
	case owner != "":
		return fmt.Errorf("%w: user, home and volumes of %s are those of pod %q, and a node with a trust policy does "+
			"not hand them to pod %q; use another controller, or another role",
			ErrManifest, id, owner, m.ID)
	case len(left) > 0:
		return fmt.Errorf("%w: no record names the pod that owned %s, and a node with a trust policy does not give it "+
			"to pod %q; move it away, or write the id of the pod that owned it to %s",
			ErrManifest, strings.Join(left, " and "), m.ID, n.ownerPath(id))
	default:
		return nil
	}
}

// dataOwnerOf returns the id in ownerFile. If there is none, left has the directories that exist.
func (n *Node) dataOwnerOf(id pod.Identity) (podID string, left []string, err error) {
	data, err := os.ReadFile(n.ownerPath(id))
	if err == nil && len(data) > 0 {
		return strings.TrimSpace(string(data)), nil, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("whose volumes they are: %w", err)
	}
	for _, kind := range []string{homesDir, volumesDir} {
		if _, err := os.Lstat(n.dirOf(kind, id)); !errors.Is(err, fs.ErrNotExist) {
			left = append(left, n.dirOf(kind, id))
		}
	}
	return "", left, nil
}

func (n *Node) ownerPath(id pod.Identity) string {
	return filepath.Join(n.dirOf(volumesDir, id), ownerFile)
}

// claimData writes ownerFile. Call it before the volumes are made.
func (v *Version) claimData() error {
	path := v.n.ownerPath(v.ID)
	if now, err := os.ReadFile(path); len(v.M.Volumes) == 0 || err == nil && string(now) == v.M.ID+"\n" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = durable.WriteFile(path, []byte(v.M.ID+"\n"))
	}
	if err != nil {
		return fmt.Errorf("note whose volumes they are: %w", err)
	}
	return nil
}
