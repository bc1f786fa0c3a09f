// Package store is the typed view of the records that rcfarm keeps in Consul: the key schema, the codecs and the
// transactions that belong together. docs/consul-keys.md describes each key.
package store

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// DefaultPrefix is where everything lives unless a daemon is told otherwise.
const DefaultPrefix = "rcfarm/"

// Shards is the number of groups into which bells and nodes are split, one standing query each (P8).
const Shards = 16

// Keys names every key below one prefix.
type Keys struct{ prefix string }

// NewKeys returns the keys below a prefix. The prefix must end with a slash and not start with one.
func NewKeys(prefix string) (Keys, error) {
	if !strings.HasSuffix(prefix, "/") || strings.HasPrefix(prefix, "/") || strings.Contains(prefix, "//") {
		return Keys{}, &field.Error{Field: "prefix", Value: prefix, Allowed: `a key prefix that ends with "/" and does not start with it, such as "rcfarm/"`}
	}
	return Keys{prefix: prefix}, nil
}

// Prefix returns the prefix that all keys share.
func (k Keys) Prefix() string { return k.prefix }

// Manifest is the key of a manifest; of "": the prefix of all.
func (k Keys) Manifest(digest string) string { return k.prefix + "manifests/" + digest }

// RCs is the prefix of all replication controllers.
func (k Keys) RCs() string { return k.prefix + "rcs/" }

// RC is the key of one replication controller.
func (k Keys) RC(id string) string { return k.RCs() + id }

// Name is the key that gives a controller's name to one id; of "": the prefix of all.
func (k Keys) Name(name string) string { return k.prefix + "names/" + name }

// Bells is the prefix, and the marker key, of one shard of bells.
func (k Keys) Bells(shard int) string { return fmt.Sprintf("%sbells/%x/", k.prefix, shard) }

// Bell is the key that changes whenever something about a controller may have.
func (k Keys) Bell(rcID string) string { return k.Bells(shardOf(rcID)) + rcID }

// Lock is the ownership lock of a controller.
func (k Keys) Lock(rcID string) string { return k.prefix + "locks/" + rcID }

// Locks is the prefix of all locks: of controllers, and one folder further down of rollouts.
func (k Keys) Locks() string { return k.prefix + "locks/" }

// Pods is the prefix of the placements of one controller.
func (k Keys) Pods(rcID string) string { return k.prefix + "pods/" + rcID + "/" }

// AllPods is the prefix of all placements.
func (k Keys) AllPods() string { return k.prefix + "pods/" }

// Pod is the key of one placement.
func (k Keys) Pod(id pod.Identity) string { return k.AllPods() + id.String() }

// Intents is the prefix, and the marker key, of what one node must do.
func (k Keys) Intents(node string) string { return k.prefix + "intent/" + node + "/" }

// Intent is the key of one intent.
func (k Keys) Intent(node string, id pod.Identity) string { return k.Intents(node) + id.String() }

// Realities is the prefix of what one node did.
func (k Keys) Realities(node string) string { return k.prefix + "reality/" + node + "/" }

// AllRealities is the prefix of what all nodes did.
func (k Keys) AllRealities() string { return k.prefix + "reality/" }

// Reality is the key of one reality.
func (k Keys) Reality(node string, id pod.Identity) string { return k.Realities(node) + id.String() }

// Nodes is the prefix, and the marker key, of one shard of node records.
func (k Keys) Nodes(shard int) string { return fmt.Sprintf("%snodes/%x/", k.prefix, shard) }

// AllNodes is the prefix of all node records.
func (k Keys) AllNodes() string { return k.prefix + "nodes/" }

// Node is the key of a node record, which is also its preparer's lock.
func (k Keys) Node(name string) string { return k.Nodes(shardOf(name)) + name }

// OrphanPages is the prefix of what one node runs without a matching intent.
func (k Keys) OrphanPages(node string) string { return k.prefix + "orphans/" + node + "/" }

// OrphanPage is the key of one page of that.
func (k Keys) OrphanPage(node string, page int) string {
	return k.OrphanPages(node) + strconv.Itoa(page)
}

// AllNodeOps is the prefix, and the marker key, of the operators' side of all nodes.
func (k Keys) AllNodeOps() string { return k.prefix + "nodeops/" }

// NodeOps is the key of the operators' side of a node.
func (k Keys) NodeOps(name string) string {
	return fmt.Sprintf("%s%x/%s", k.AllNodeOps(), shardOf(name), name)
}

// Reservation is the key of what is taken on a node; of "": the prefix of all.
func (k Keys) Reservation(node string) string { return k.prefix + "reservations/" + node }

// Requests is the prefix of what is asked of a controller's owner.
func (k Keys) Requests(rcID string) string { return k.AllRequests() + rcID + "/" }

// AllRequests is the prefix of all requests.
func (k Keys) AllRequests() string { return k.prefix + "requests/" }

// Request is the key of one request.
func (k Keys) Request(rcID, ulid string) string { return k.Requests(rcID) + ulid }

// Farms is the prefix, and the marker key, of the member records.
func (k Keys) Farms() string { return k.prefix + "farms/" }

// Farm is the key of one member record.
func (k Keys) Farm(id string) string { return k.Farms() + id }

// Status is the key of a controller's status; of "": the prefix of all.
func (k Keys) Status(rcID string) string { return k.prefix + "status/" + rcID }

// Breaker is the key of the mass-stop breaker.
func (k Keys) Breaker() string { return k.prefix + "breaker" }

// Incidents is the key of the incidents that belong to no controller.
func (k Keys) Incidents() string { return k.prefix + "incidents" }

// Audit is the key of one audit record; of "": the prefix of all.
func (k Keys) Audit(ulid string) string { return k.prefix + "audit/" + ulid }

// Schema is the key of the format version and the cluster nonce.
func (k Keys) Schema() string { return k.prefix + "schema" }

// Settled is the key of the nonce for which the hold has ended.
func (k Keys) Settled() string { return k.prefix + "settled" }

// own returns an error unless a record belongs at the key where it was found. What names neither itself nor its node is
// told by its identity alone.
func (k Keys) own(key string, value any) error {
	home := key
	switch r := value.(type) {
	case *rc.RC:
		home = k.RC(r.ID)
	case *rc.Status:
		home = k.Status(r.RCID)
	case *pod.Placement:
		home = k.Pod(r.Identity)
	case *pod.Reality:
		home = k.Reality(r.Node, r.Identity)
	case *pod.Intent:
		if !strings.HasSuffix(key, "/"+r.Identity.String()) {
			home = k.Intent("NODE", r.Identity)
		}
	case *node.Node:
		home = k.Node(r.Name)
	case *node.OrphanPage:
		home = k.OrphanPage(r.Node, r.Page)
	case *node.Ops:
		home = k.NodeOps(r.Name)
	case *rollout.Record:
		home = k.Rollout(r.Service)
	case *Request:
		home = k.Request(r.RCID, r.ID)
	case *record.Deployed:
		home = k.Deployed(r.Service)
	case *record.Entry:
		home = k.Entry(r.Service, r.Revision)
	}
	if home != key {
		return fmt.Errorf("its content belongs to %s", home)
	}
	return nil
}

// markers returns the marker keys that all daemons share. A watched prefix without any key would wake on every write
// nearby.
func (k Keys) markers() []string {
	keys := []string{k.AllNodeOps(), k.Farms(), k.Rollouts()}
	for shard := range Shards {
		keys = append(keys, k.Bells(shard), k.Nodes(shard))
	}
	return keys
}

// shardOf spreads ids evenly and for ever in the same way.
func shardOf(id string) int {
	sum := sha256.Sum256([]byte(id))
	return int(sum[0]) % Shards
}
