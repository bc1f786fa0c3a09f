// Package store is the typed view of the records that rcfarm keeps in Consul: the key schema, the codecs and the
// transactions that belong together. docs/consul-keys.md describes each key.
package store

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// DefaultPrefix is where everything lives unless a daemon is told otherwise.
const DefaultPrefix = "rcfarm/"

// Shards is the number of groups into which bells and nodes are split, one standing query each (P8).
const Shards = 16

// Kind is where the records of one kind are.
type Kind struct {
	prefix  string
	tail    string // of the key after the first part of the id
	sharded bool   // by the first part of the id
	unit    bool   // one for all controllers of a unit: the id of any of them names it
}

// Key is the key of the record with an id, which may have several parts; without any: the prefix of all records, and their marker, or the key of the
// only one.
func (k Kind) Key(id ...string) string {
	if len(id) == 0 {
		return k.prefix
	}
	first := k.of(id[0])
	switch {
	case k.sharded:
		return k.Shard(shardOf(first)) + first
	case len(id) == 1:
		return k.prefix + first + k.tail
	default:
		return k.prefix + first + k.tail + "/" + strings.Join(id[1:], "/")
	}
}

// of returns the first part of the key of an id.
func (k Kind) of(id string) string {
	if k.unit {
		return rc.UnitOf(id)
	}
	return id
}

// OfUnit is what the keys of all controllers of a unit begin with. Where a unit's id is no ULID others may begin with it, too.
func (k Kind) OfUnit(unit string) string { return k.prefix + unit }

// Keys are the keys of several records, each with an id of one part.
func (k Kind) Keys(ids []string) []string {
	return field.Each(ids, func(id string) string { return k.Key(id) })
}

// Below is the prefix, and the marker key, of the records whose ids begin with a part.
func (k Kind) Below(id string) string { return k.prefix + k.of(id) + k.tail + "/" }

// first returns the first part of the id that a key is made of.
func (k Kind) first(key string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(key, k.prefix), "/")
	return id
}

// Shard is the prefix, and the marker key, of one shard.
func (k Kind) Shard(n int) string { return fmt.Sprintf("%s%x/", k.prefix, n) }

// At is the key of what there is about an identity on a node.
func (k Kind) At(at At) string { return k.Key(at.Node, at.Identity.String()) }

// KeysAt is At for several.
func (k Kind) KeysAt(at []At) []string { return field.Each(at, k.At) }

// Keys names every key below one prefix.
type Keys struct {
	prefix string

	Schema, Synced, Breaker, Incidents Kind // one record each
	Gone, Gate, Settings               Kind // one record each (ADR 27, ADR 28)
	Manifests, Audits                  Kind // by digest; by ULID
	RCs, Statuses                      Kind // by id of a controller
	Bells, Locks, Drops                Kind // by unit; below that of drops are counters by node (ADR 29, ADR 11)
	Names                              Kind // of controllers; the id of one
	Requests                           Kind // by controller, and ULID or leader-<node>
	Pods                               Kind // placements, by identity
	Intents, Realities                 Kind // by node and identity
	Nodes, NodeOps, Reservations       Kind // by node
	OrphanPages                        Kind // by node and number
	Farms                              Kind // by farm
	Heard, HeardFarms, HeardNodes      Kind // all; by farm; by node
	Rollouts, RolloutTroubles          Kind // by unit
	Deployments, Deployed, Entries     Kind // all of services; the document of each; by service and revision, what that was
}

// NewKeys returns the keys below a prefix. The prefix must end with a slash and not start with one.
func NewKeys(prefix string) (*Keys, error) {
	if !strings.HasSuffix(prefix, "/") || strings.HasPrefix(prefix, "/") || strings.Contains(prefix, "//") {
		return nil, &field.Error{Field: "prefix", Value: prefix, Allowed: `a key prefix that ends with "/" and does not start with it, such as "rcfarm/"`}
	}
	at := func(path string) Kind { return Kind{prefix: prefix + path} }
	sharded := func(path string) Kind { return Kind{prefix: prefix + path, sharded: true} }
	unit := func(k Kind) Kind { k.unit = true; return k }
	each := func(path, tail string) Kind { return Kind{prefix: prefix + path, tail: tail} }
	return &Keys{
		prefix: prefix,
		Schema: at("schema"), Gate: at("gate"), Settings: at("settings"), Synced: at("settled"), Breaker: at("breaker"), Incidents: at("incidents"), Gone: at("gone"),
		Manifests: at("manifests/"), Audits: at("audit/"),
		RCs: at("rcs/"), Statuses: at("status/"), Bells: unit(sharded("bells/")), Locks: unit(at("locks/")), Drops: unit(at("drops/")),
		Names: at("names/"), Requests: at("requests/"),
		Pods: at("pods/"), Intents: at("intent/"), Realities: at("reality/"),
		Nodes: sharded("nodes/"), NodeOps: sharded("nodeops/"), Reservations: at("reservations/"), OrphanPages: at("orphans/"),
		Farms: at("farms/"),
		Heard: at("heard/"), HeardFarms: at("heard/farms/"), HeardNodes: at("heard/nodes/"),
		Rollouts: unit(at("rollouts/")), RolloutTroubles: unit(each("rollouts/", "/trouble")),
		Deployments: at("deployments/"), Deployed: each("deployments/", "/spec"), Entries: each("deployments/", "/history"),
	}, nil
}

// Prefix returns the prefix that all keys share.
func (k *Keys) Prefix() string { return k.prefix }

// markers returns the marker keys that all daemons share. A watched prefix without any key would wake on every write
// nearby.
func (k *Keys) markers() []string {
	keys := []string{k.NodeOps.Key(), k.Farms.Key()}
	for shard := range Shards {
		keys = append(keys, k.Bells.Shard(shard), k.Nodes.Shard(shard))
	}
	return keys
}

// shardOf spreads ids evenly and for ever in the same way.
func shardOf(id string) int {
	sum := sha256.Sum256([]byte(id))
	return int(sum[0]) % Shards
}
