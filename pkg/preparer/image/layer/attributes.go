package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rcfarm/rcfarm/pkg/internal/archive"
)

// attributePrefix begins the records of extended attributes in an archive.
const attributePrefix = "SCHILY.xattr."

// attributeName returns the name of an extended attribute that is kept: file capabilities, and attributes of users. The
// others are left out, because trusted.overlay and user.overlay would let a layer redirect paths of the mount.
func attributeName(record string) (string, bool) {
	name, ok := strings.CutPrefix(record, attributePrefix)
	keep := name == "security.capability" ||
		strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
	return name, ok && keep
}

func hasAttributes(hdr *tar.Header) bool {
	for record := range hdr.PAXRecords {
		if _, ok := attributeName(record); ok {
			return true
		}
	}
	return false
}

// setAttributes sets the extended attributes of an entry.
func setAttributes(f *os.File, hdr *tar.Header) error {
	total := 0
	for record, value := range hdr.PAXRecords {
		name, ok := attributeName(record)
		if !ok {
			continue
		}
		total += len(name) + len(value)
		if len(name) > unix.NAME_MAX || len(value) > maxAttribute || total > maxAttributes {
			return archive.Refuse(hdr.Name, "extended attributes of more than the limit",
				fmt.Sprintf("%d bytes each and %d together", maxAttribute, maxAttributes))
		}
		err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
			return archive.Refuse(hdr.Name, "extended attribute "+archive.Quoted(name)+" that the kernel refuses",
				"valid attributes")
		case err != nil:
			return fmt.Errorf("set %s: %w", archive.Quoted(name), err)
		}
	}
	return nil
}
