package store

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// DefaultPrefix is the default prefix of all keys.
const DefaultPrefix = "rcfarm/"

// Shards is the number of groups of bells and nodes. Each group has its own blocking query (P8).
const Shards = 16

// Kind has the place of all records of one kind.
type Kind struct {
	prefix  string
	tail    string // of the key after the first part of the id
	sharded bool   // by the first part of the id
	unit    bool   // all controllers of a unit share one key; the id of any of them leads to this key
}

// Key returns the key of a record, whose id may have several parts. Without an id it returns the key of the only
// record, or the prefix of all records. The prefix is also their marker.
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

func (k Kind) of(id string) string {
	if k.unit {
		return rc.UnitOf(id)
	}
	return id
}

// OfUnit returns the beginning of the keys of all controllers of a unit. If the unit's id is no ULID, keys of other
// units may begin with it, too.
func (k Kind) OfUnit(unit string) string { return k.prefix + unit }

// Keys returns the keys of records with ids of one part.
func (k Kind) Keys(ids []string) []string {
	return field.Each(ids, func(id string) string { return k.Key(id) })
}

// Below returns the prefix, and the marker key, of the records whose ids begin with this part.
func (k Kind) Below(id string) string { return k.prefix + k.of(id) + k.tail + "/" }

func (k Kind) first(key string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(key, k.prefix), "/")
	return id
}

// Shard returns the prefix, and the marker key, of a shard.
func (k Kind) Shard(n int) string { return fmt.Sprintf("%s%x/", k.prefix, n) }

// At returns the key of the record about an identity on a node.
func (k Kind) At(at At) string { return k.Key(at.Node, at.Identity.String()) }

// KeysAt is At for several records.
func (k Kind) KeysAt(at []At) []string { return field.Each(at, k.At) }

// Keys has every kind of key below one prefix.
type Keys struct {
	prefix string

	Schema, Synced, Breaker, Incidents Kind // one record each
	Gone, Gate, Settings               Kind // one record each (ADR 27, ADR 28)
	Manifests, Audits                  Kind // by digest; by ULID
	RCs, Statuses                      Kind // by id of a controller
	Bells, Locks, Drops                Kind // by unit; below the key of drops: a counter for each node (ADR 29, ADR 11)
	Names                              Kind // by name of a controller; the value is its id
	Requests                           Kind // by controller, and ULID or leader-<node>
	Pods                               Kind // placements, by identity
	Intents, Realities                 Kind // by node and identity
	Nodes, NodeOps, Reservations       Kind // by node
	OrphanPages                        Kind // by node and number
	Farms                              Kind // by farm
	Heard, HeardFarms, HeardNodes      Kind // of all daemons; by farm; by node
	Rollouts, RolloutTroubles          Kind // by unit
	// all records of services; the document, by service; the history, by service and revision
	Deployments, Deployed, Entries Kind
}

// NewKeys takes a prefix that ends with a slash and does not start with one.
func NewKeys(prefix string) (*Keys, error) {
	if !strings.HasSuffix(prefix, "/") || strings.HasPrefix(prefix, "/") || strings.Contains(prefix, "//") {
		return nil, &field.Error{
			Field: "prefix", Value: prefix,
			Allowed: `a key prefix that ends with "/" and does not start with it, such as "rcfarm/"`,
		}
	}
	at := func(path string) Kind { return Kind{prefix: prefix + path} }
	sharded := func(path string) Kind { return Kind{prefix: prefix + path, sharded: true} }
	unit := func(k Kind) Kind { k.unit = true; return k }
	each := func(path, tail string) Kind { return Kind{prefix: prefix + path, tail: tail} }
	return &Keys{
		prefix: prefix,
		Schema: at("schema"), Gate: at("gate"), Settings: at("settings"), Synced: at("settled"),
		Breaker: at("breaker"), Incidents: at("incidents"), Gone: at("gone"),
		Manifests: at("manifests/"), Audits: at("audit/"),
		RCs: at("rcs/"), Statuses: at("status/"),
		Bells: unit(sharded("bells/")), Locks: unit(at("locks/")), Drops: unit(at("drops/")),
		Names: at("names/"), Requests: at("requests/"),
		Pods: at("pods/"), Intents: at("intent/"), Realities: at("reality/"),
		Nodes: sharded("nodes/"), NodeOps: sharded("nodeops/"),
		Reservations: at("reservations/"), OrphanPages: at("orphans/"),
		Farms: at("farms/"),
		Heard: at("heard/"), HeardFarms: at("heard/farms/"), HeardNodes: at("heard/nodes/"),
		Rollouts: unit(at("rollouts/")), RolloutTroubles: unit(each("rollouts/", "/trouble")),
		Deployments: at("deployments/"),
		Deployed:    each("deployments/", "/spec"), Entries: each("deployments/", "/history"),
	}, nil
}

// Prefix returns the prefix of all keys.
func (k *Keys) Prefix() string { return k.prefix }

func (k *Keys) markers() []string {
	keys := []string{k.NodeOps.Key(), k.Farms.Key()}
	for shard := range Shards {
		keys = append(keys, k.Bells.Shard(shard), k.Nodes.Shard(shard))
	}
	return keys
}

// shardOf spreads ids evenly. It must never change, because stored keys depend on it.
func shardOf(id string) int {
	sum := sha256.Sum256([]byte(id))
	return int(sum[0]) % Shards
}
