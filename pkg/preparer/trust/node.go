package trust

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Node decides by a policy in a file. It reads the file for each decision, so that a change applies at once.
type Node struct{ file string }

// NewNode does not read the file.
func NewNode(file string) *Node { return &Node{file: file} }

// Policy reads the present policy.
func (n *Node) Policy() (*Policy, error) { return Load(n.file) }

// Check returns nil if the node may run a manifest, and otherwise an ErrRefused, also if the policy cannot be read.
func (n *Node) Check(m *manifest.Manifest, canonical []byte, signature string) error {
	p, err := n.Policy()
	if err != nil {
		return refuse("the policy cannot be read, so nothing new is run; mend it: %w", err)
	}
	return p.Check(time.Now(), m, canonical, signature)
}

const othersWrite = 0o022

var errWritable = errors.New("others than its owner may write it; allowed: chmod go-w")

func readGuarded(file string) ([]byte, error) {
	f, info, err := regular.Open(file, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Mode().Perm()&othersWrite != 0 {
		return nil, fmt.Errorf("%s has the permissions %04o: %w", file, info.Mode().Perm(), errWritable)
	}
	return regular.ReadAll(f, maxPolicyBytes)
}
