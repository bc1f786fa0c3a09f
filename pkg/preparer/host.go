package preparer

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

// refuse notes that the node's name belongs to another host; nil ends that. A preparer that is refused is not in touch, so
// that pods with disconnect.stop_after stop: they may have been started by the other.
func (p *Preparer) refuse(err error) {
	p.mu.Lock()
	began := (p.refused == nil) != (err == nil)
	p.refused = err
	p.cfg.Metrics.refused(err != nil)
	p.mu.Unlock()
	if began || err == nil { // whose name was lost is not serving before it is its own again
		p.setServing(err == nil)
	}
}

// refusal returns why the node's name is not this host's, nil when it is or nobody knows.
func (p *Preparer) refusal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if host := p.lostTo(); host != "" {
		return errors.Join(fmt.Errorf("the name of node %s was taken over from this host by %s, so that none of its pods may run", p.cfg.Node.Name, host), p.refused)
	}
	return p.refused
}
