package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// tenantFile lies beside the volumes of an identity, which outlive its record, and says which pod they are of. No volume has a
// name with a dot.
const tenantFile = ".pod-id"

// MayMoveIn refuses, under a trust policy, a manifest of another pod than the one that the identity's user, home and volumes
// are of, which is tenant as far as its record tells: who may sign the one pod must not get what the other has left. Nothing tells of an identity whose it should be but
// what is there.
func (n *Node) MayMoveIn(id pod.Identity, tenant string, m *manifest.Manifest) error {
	if n.cfg.Trust == nil {
		return nil
	}
	var left []string
	var err error
	if tenant == "" {
		tenant, left, err = n.tenantOf(id)
	}
	switch {
	case err != nil:
		return err
	case tenant == m.ID:
		return nil
	case tenant != "":
		return fmt.Errorf("%w: user, home and volumes of %s are those of pod %q, and a node with a trust policy does not hand them to pod %q; use another controller, or another role",
			ErrManifest, id, tenant, m.ID)
	case len(left) > 0:
		return fmt.Errorf("%w: nothing tells which pod left %s, and a node with a trust policy does not hand that to pod %q; move it away, or write the pod's id to %s",
			ErrManifest, strings.Join(left, " and "), m.ID, n.tenantPath(id))
	default:
		return nil
	}
}

// tenantOf returns the id of the pod that the identity's directories are of. Where nothing tells, left are the directories that somebody
// left.
func (n *Node) tenantOf(id pod.Identity) (podID string, left []string, err error) {
	data, err := os.ReadFile(n.tenantPath(id))
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

func (n *Node) tenantPath(id pod.Identity) string {
	return filepath.Join(n.dirOf(volumesDir, id), tenantFile)
}

// moveIn notes whose volumes they are, before there are any.
func (v *Version) moveIn() error {
	path := v.n.tenantPath(v.ID)
	if now, err := os.ReadFile(path); len(v.M.Volumes) == 0 || err == nil && string(now) == v.M.ID+"\n" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = v.n.cfg.Reserve.WriteFile(path, []byte(v.M.ID+"\n"))
	}
	if err != nil {
		return fmt.Errorf("note whose volumes they are: %w", err)
	}
	return nil
}
