package trust

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rcfarm/rcfarm/pkg/internal/regular"
	"github.com/rcfarm/rcfarm/pkg/manifest"
)

// Node decides by a policy in a file. It reads the file for each decision, so that a change counts from the next one on.
type Node struct{ file string }

// NewNode returns a node with its policy in a file, which is not read yet.
func NewNode(file string) *Node { return &Node{file: file} }

// Policy reads the policy as it is now.
func (n *Node) Policy() (*Policy, error) { return Load(n.file) }

// Check returns nil when the node may run a manifest. A policy that cannot be read lets nothing run: the error is
// ErrRefused too.
func (n *Node) Check(m *manifest.Manifest, canonical []byte, signature string) error {
	p, err := n.Policy()
	if err != nil {
		return refuse("the policy cannot be read, so nothing new is run; mend it: %w", err)
	}
	return p.Check(time.Now(), m, canonical, signature)
}

// othersWrite are the permissions of the group and of others to write.
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
