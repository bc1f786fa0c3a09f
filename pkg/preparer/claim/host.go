package claim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/durable"
)

// hostFile names this data directory for ever, so that two machines that were given one name are told apart.
const hostFile = "host-id"

var hostPattern = regexp.MustCompile(`^[0-9a-z]{26}$`)

// hostID returns the id of the data directory, a new one where there is none that can be read.
func hostID(dir string, reserve *durable.Reserve) (string, error) {
	path := filepath.Join(dir, hostFile)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read host id: %w", err)
	}
	if id := strings.TrimSpace(string(data)); hostPattern.MatchString(id) {
		return id, nil
	}
	id := strings.ToLower(ulid.Make().String())
	if err := reserve.WriteFile(path, []byte(id+"\n")); err != nil {
		return "", fmt.Errorf("write host id: %w", err)
	}
	return id, nil
}
