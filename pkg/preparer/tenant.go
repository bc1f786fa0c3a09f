package preparer

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

// samePod reports an intent that names another pod than the manifest whose digest it names.
func samePod(in pod.Intent, m *manifest.Manifest) error {
	if m == nil || in.PodID == m.ID {
		return nil
	}
	return fmt.Errorf("%w: the intent's pod_id is %q, and manifest %s is of %q; whoever wrote the intent has to say which", errManifest, in.PodID, short(in.Digest), m.ID)
}

// mayMoveIn refuses, under a trust policy, a manifest of another pod than the one that the identity's user, home and volumes
// are of: who may sign the one pod must not get what the other has left. Nothing tells of an identity whose it should be but
// what is there.
func (p *Preparer) mayMoveIn(rec *Record, m *manifest.Manifest) error {
	if p.cfg.Trust == nil {
		return nil
	}
	tenant, left, err := p.tenantOf(rec)
	switch {
	case err != nil:
		return err
	case tenant == m.ID:
		return nil
	case tenant != "":
		return fmt.Errorf("%w: user, home and volumes of %s are those of pod %q, and a node with a trust policy does not hand them to pod %q; use another controller, or another role",
			errManifest, rec.Intent.Identity, tenant, m.ID)
	case len(left) > 0:
		return fmt.Errorf("%w: nothing tells which pod left %s, and a node with a trust policy does not hand that to pod %q; move it away, or write the pod's id to %s",
			errManifest, strings.Join(left, " and "), m.ID, p.tenantPath(rec.Intent.Identity))
	default:
		return nil
	}
}

// tenantOf returns the id of the pod that the identity's user and directories are of. Where nothing tells, left are the
// directories that somebody left.
func (p *Preparer) tenantOf(rec *Record) (podID string, left []string, err error) {
	if rec.Tenant != "" {
		return rec.Tenant, nil, nil
	}
	for _, in := range rec.versions() { // a record of before there were tenants
		if m := in.manifest(); m != nil {
			return m.ID, nil, nil
		}
	}
	id := rec.Intent.Identity
	data, err := os.ReadFile(p.tenantPath(id))
	if err == nil && len(data) > 0 {
		return strings.TrimSpace(string(data)), nil, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("whose volumes they are: %w", err)
	}
	for _, kind := range []string{homesDir, volumesDir} {
		if _, err := os.Lstat(p.dirOf(kind, id)); !errors.Is(err, fs.ErrNotExist) {
			left = append(left, p.dirOf(kind, id))
		}
	}
	return "", left, nil
}

func (p *Preparer) tenantPath(id pod.Identity) string {
	return filepath.Join(p.dirOf(volumesDir, id), tenantFile)
}

// moveIn notes whose volumes they are, before there are any.
func (p *Preparer) moveIn(v *version) error {
	path := p.tenantPath(v.id)
	if now, err := os.ReadFile(path); len(v.m.Volumes) == 0 || err == nil && string(now) == v.m.ID+"\n" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = p.reserve.WriteFile(path, []byte(v.m.ID+"\n"))
	}
	if err != nil {
		return fmt.Errorf("note whose volumes they are: %w", err)
	}
	return nil
}
