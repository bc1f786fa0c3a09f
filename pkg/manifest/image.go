package manifest

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/reference"
)

// MinTmpfs is the least size of files in memory, in bytes. The kernel takes less than a page for no limit.
const MinTmpfs = 4096

// AllCapabilities is the name that drops all capabilities.
const AllCapabilities = "ALL"

// capabilityNames has the names of capabilities(7) without CAP_.
var capabilityNames = strings.Fields("AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE " +
	"CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN " +
	"MAC_OVERRIDE MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID " +
	"SYS_ADMIN SYS_BOOT SYS_CHROOT SYSLOG SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME " +
	"SYS_TTY_CONFIG WAKE_ALARM")

// CapabilityName is a name of capabilities(7).
var CapabilityName = Pattern{
	regexp.MustCompile(`^(?:CAP_)?(?:` + strings.Join(capabilityNames, "|") + `)$`),
	"a name of capabilities(7), such as NET_BIND_SERVICE",
}

// Capability returns the name of a capability with CAP_, and whether capabilities(7) has it.
func Capability(text string) (name string, ok bool) {
	return "CAP_" + strings.TrimPrefix(text, "CAP_"), CapabilityName.ok(text)
}

// Source names what the digest of the artifact is of: the URL of a tar, or registry/name:tag of an image. It is empty
// for an exec artifact, and for an image without a tag.
func (a *Artifact) Source() string {
	if !a.IsImage() {
		return a.URL
	}
	ref, err := reference.Parse(a.Ref)
	if err != nil || ref.Tag == "" {
		return ""
	}
	return ref.Pinned("").String()
}

// Repository returns registry/repository of an image. It is empty if the ref is not valid.
func (a *Artifact) Repository() string {
	ref, err := reference.Parse(a.Ref)
	if err != nil {
		return ""
	}
	return ref.Name()
}

// Digest returns 64 hex digits of a tar, or sha256: and 64 hex digits of an image. It is empty if the artifact has no
// digest.
func (a *Artifact) Digest() string {
	if !a.IsImage() {
		return a.SHA256
	}
	ref, _ := reference.Parse(a.Ref)
	return ref.Digest
}

// LacksDigest reports whether a document leaves out the digest that a manifest must have. It is false for an image
// whose ref is not valid.
func (a *Artifact) LacksDigest() bool {
	return a.IsFetched() && a.SHA256 == "" || a.Source() != "" && a.Digest() == ""
}

// Pin adds a digest in the form that Digest returns. The ref of an image keeps its tag.
func (a *Artifact) Pin(digest string) {
	if !a.IsImage() {
		a.SHA256 = digest
	} else if ref, err := reference.Parse(a.Ref); err == nil {
		a.Ref = ref.Pinned(digest).String()
	}
}

func (a *Artifact) validateImage(errs *field.Errors) {
	const form = "registry/name:tag@sha256:digest; the tag may be missing"
	switch ref, err := reference.Parse(a.Ref); {
	case a.Ref == "":
		errs.Missing("ref", form)
	case err != nil:
		addInvalid(errs, "ref", a.Ref, err)
	case ref.Digest == "":
		errs.Add("ref", a.Ref, form+": a manifest names the digest, because a tag can move. rcctl deploy finds it")
	}
	if a.Platform != "" {
		if _, err := reference.ParsePlatform(a.Platform); err != nil {
			addInvalid(errs, "platform", a.Platform, err)
		}
	}
	const why = "an image has a ref"
	checkNone(errs, "url", a.URL, why)
	checkNone(errs, "sha256", a.SHA256, why)
	checkNone(errs, "path", a.Path, why)
}

// addInvalid adds an error of package reference.
func addInvalid(errs *field.Errors, path, text string, err error) {
	allowed := err.Error()
	if bad, ok := errors.AsType[*reference.InvalidError](err); ok {
		allowed = bad.Allowed + "; here: " + bad.Problem
	}
	errs.Add(path, text, allowed)
}

// validateContainer checks what is different for a launchable that runs in a container.
func (l *Launchable) validateContainer(errs *field.Errors) {
	if l.Command != "" {
		ImageCommand.check(errs, "command", l.Command)
	}
	checkUser(errs, ImageUser, l.User)
	if l.WorkDir != "" {
		AbsolutePath.check(errs, "work_dir", l.WorkDir)
	}
	checkCount(errs, "tmpfs", len(l.Tmpfs), 0, MaxTmpfs)
	for i := range l.Tmpfs {
		checkTmpfsSize(errs, fmt.Sprintf("tmpfs[%d].size", i), l.Tmpfs[i].Size)
	}
	checkTmpfsSize(errs, "shm_size", l.ShmSize)
	if c := l.Capabilities; c != nil {
		checkCapabilities(errs, "capabilities.add", c.Add, "")
		checkCapabilities(errs, "capabilities.drop", c.Drop, AllCapabilities)
	}
}

func checkTmpfsSize(errs *field.Errors, path string, size Bytes) {
	if size != 0 && (size < MinTmpfs || size > MaxMemory) {
		errs.Add(path, int64(size), fmt.Sprintf("bytes, from %d to %d", MinTmpfs, int64(MaxMemory)))
	}
}

// checkCapabilities also accepts the name all, if it is not empty.
func checkCapabilities(errs *field.Errors, path string, names []string, all string) {
	allowed := CapabilityName.allowed
	if all != "" {
		allowed += ", or " + all
	}
	seen := map[string]bool{}
	for i, asked := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		name, ok := Capability(asked)
		if !ok && (all == "" || asked != all) {
			errs.Add(at, asked, allowed)
		}
		if seen[name] {
			errs.Add(at, asked, "a value that no other entry has")
		}
		seen[name] = true
	}
}

// A mount is a place where a container sees a volume, or a directory in memory.
type mount struct {
	field, path string
	volume      bool
}

// validateMounts checks the paths in containers. The node checks them again, together with the links of the image.
func (m *Manifest) validateMounts(errs *field.Errors) {
	volumes := make([]mount, len(m.Volumes))
	for i := range m.Volumes {
		volumes[i] = mount{fmt.Sprintf("volumes[%d].path", i), m.Volumes[i].Path, true}
	}
	checkMounts(errs, volumes, 0)
	for i := range m.Launchables {
		all := slices.Clone(volumes)
		for k := range m.Launchables[i].Tmpfs {
			at := fmt.Sprintf("launchables[%d].tmpfs[%d].path", i, k)
			all = append(all, mount{at, m.Launchables[i].Tmpfs[k].Path, false})
		}
		checkMounts(errs, all, len(volumes))
	}
}

// checkMounts checks all mounts from an index on. No mount may be below a volume: processes of the pod can change the
// volume, and could put a link there while the mount is made.
func checkMounts(errs *field.Errors, all []mount, from int) {
	const allowed = "an absolute path in the container such as /var/lib/web, without '.', '..' and empty parts, not " +
		"/etc and outside /proc, /sys and /dev"
	for i, m := range all[from:] {
		switch {
		case m.path == "":
			errs.Missing(m.field, allowed)
			continue
		case !AbsolutePath.ok(m.path) || isReserved(m.path):
			errs.Add(m.field, m.path, allowed)
			continue
		}
		for k, other := range all {
			same := k < from+i && other.path == m.path
			if same || other.volume && other.path != "" && strings.HasPrefix(m.path, other.path+"/") {
				errs.Add(m.field, m.path,
					fmt.Sprintf("a path that is not at or below %s of %s", other.path, other.field))
				break
			}
		}
	}
}

// isReserved reports whether the kernel or the node fills a path of each container.
func isReserved(path string) bool {
	if slices.Contains([]string{"/etc", "/etc/hosts", "/etc/resolv.conf"}, path) {
		return true
	}
	return slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, func(dir string) bool {
		return path == dir || strings.HasPrefix(path, dir+"/")
	})
}

// Unsupported explains why a launchable has not a field that container descriptions of other systems have. It returns
// an empty text for other fields.
func (*Launchable) Unsupported(name string) string {
	return map[string]string{
		"devices":    "nothing: containers get no devices of the node",
		"gpus":       "nothing: containers get no GPUs",
		"sysctls":    "nothing: set them on the node, whose network containers share",
		"init":       "nothing: no node has a program that reaps zombies yet",
		"privileged": "nothing: name the capabilities that the program needs in capabilities.add",
		"host_pid":   "nothing: containers have their own process ids",
		"selinux":    "nothing: containers get no SELinux labels",
	}[name]
}
