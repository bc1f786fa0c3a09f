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

// ownerFile lies beside the volumes of an identity, which outlive its record, and says which pod they are of. No volume has a
// name with a dot.
const ownerFile = ".pod-id"

// MayUseData refuses, under a trust policy, a manifest of another pod than the one that the identity's user, home and volumes
// are of, which is the owner as far as its record tells: who may sign the one pod must not get what the other has left. Nothing tells of an identity whose it should be but
// what is there.
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
		return fmt.Errorf("%w: user, home and volumes of %s are those of pod %q, and a node with a trust policy does not hand them to pod %q; use another controller, or another role",
			ErrManifest, id, owner, m.ID)
	case len(left) > 0:
		return fmt.Errorf("%w: nothing tells which pod left %s, and a node with a trust policy does not hand that to pod %q; move it away, or write the pod's id to %s",
			ErrManifest, strings.Join(left, " and "), m.ID, n.ownerPath(id))
	default:
		return nil
	}
}

// dataOwnerOf returns the id of the pod that the identity's directories are of. Where nothing tells, left are the directories that somebody
// left.
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

// claimData notes whose volumes they are, before there are any.
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
