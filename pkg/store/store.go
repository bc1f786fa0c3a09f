package store

import (
	"context"
	"strconv"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

// Store reads and writes all records. It has a field for each kind of records, such as RCs, and a type for each task
// with several kinds, such as Views. It is safe for concurrent use.
type Store struct {
	*db
	*Views
	*Watches
	*Agents
	Operator    *Operator
	Deployments *Deployments
}

// New returns a store for the records below the keys' prefix.
func New(c *consul.Client, keys *Keys) *Store {
	d := newDB(c, keys)
	d.guard = newGuard(d)
	if c != nil { // without a client, the store can only name keys
		d.guard = c.Guard(keys.prefix, func() consul.Guard { return d.guard }).(*guard)
	}
	return &Store{
		db: d, Views: &Views{d}, Watches: &Watches{d}, Agents: &Agents{d},
		Operator: &Operator{d}, Deployments: &Deployments{d},
	}
}

type db struct {
	c     *consul.Client
	keys  *Keys
	guard *guard

	Schema          Records[Schema]
	Gate            Records[Gate]
	Settings        Records[Settings]
	Synced          Records[Synced]
	Breaker         Records[Breaker]
	Incidents       Records[Incidents]
	Gone            Records[Gone]
	RCs             Records[rc.RC]
	Statuses        Records[rc.Status]
	Requests        Records[Request]
	Pods            Records[pod.Placement]
	Intents         Records[pod.Intent]
	Realities       Records[pod.Reality]
	Nodes           Records[node.Node] // a record's Session is empty while no preparer holds it
	NodeOps         Records[node.Ops]
	Reservations    Records[node.Reservation]
	OrphanPages     Records[node.OrphanPage]
	Farms           Records[Member] // living farms
	Heard           Records[Heard]
	Rollouts        Records[rollout.Record]
	RolloutTroubles Records[RolloutTrouble]
	Deployed        Records[record.Deployed] // the document of each service that was deployed last
	Entries         Records[record.Entry]
	Audits          Records[Audit]
	manifests       Records[storedManifest]
}

// newDB sets how a record's key follows from its content. If the content lacks the node's name, only the identity is
// checked.
func newDB(c *consul.Client, k *Keys) *db {
	d := &db{c: c, keys: k}
	d.Schema = Records[Schema]{k.Schema, d, nil}
	d.Gate = Records[Gate]{k.Gate, d, nil}
	d.Settings = Records[Settings]{k.Settings, d, nil}
	d.Synced = Records[Synced]{k.Synced, d, nil}
	d.Breaker = Records[Breaker]{k.Breaker, d, nil}
	d.Incidents = Records[Incidents]{k.Incidents, d, nil}
	d.Gone = Records[Gone]{k.Gone, d, nil}
	d.RCs = Records[rc.RC]{k.RCs, d, func(_ string, r *rc.RC) string { return k.RCs.Key(r.ID) }}
	d.Statuses = Records[rc.Status]{
		k.Statuses, d,
		func(_ string, r *rc.Status) string { return k.Statuses.Key(r.RCID) },
	}
	d.Requests = Records[Request]{
		k.Requests, d,
		func(_ string, r *Request) string { return k.Requests.Key(r.RCID, r.ID) },
	}
	d.Pods = Records[pod.Placement]{
		k.Pods, d,
		func(_ string, r *pod.Placement) string { return k.Pods.Key(r.Identity.String()) },
	}
	d.Intents = Records[pod.Intent]{k.Intents, d, func(key string, r *pod.Intent) string {
		return k.Intents.Key(k.Intents.first(key), r.Identity.String())
	}}
	d.Realities = Records[pod.Reality]{
		k.Realities, d,
		func(_ string, r *pod.Reality) string { return k.Realities.Key(r.Node, r.Identity.String()) },
	}
	d.Nodes = Records[node.Node]{k.Nodes, d, func(_ string, r *node.Node) string { return k.Nodes.Key(r.Name) }}
	d.NodeOps = Records[node.Ops]{k.NodeOps, d, func(_ string, r *node.Ops) string { return k.NodeOps.Key(r.Name) }}
	d.Reservations = Records[node.Reservation]{k.Reservations, d, nil}
	d.OrphanPages = Records[node.OrphanPage]{
		k.OrphanPages, d,
		func(_ string, r *node.OrphanPage) string { return k.OrphanPages.Key(r.Node, strconv.Itoa(r.Page)) },
	}
	d.Farms = Records[Member]{k.Farms, d, nil}
	d.Heard = Records[Heard]{k.Heard, d, nil}
	d.Rollouts = Records[rollout.Record]{
		k.Rollouts, d,
		func(_ string, r *rollout.Record) string { return k.Rollouts.Key(r.Unit()) },
	}
	d.RolloutTroubles = Records[RolloutTrouble]{k.RolloutTroubles, d, nil}
	d.Deployed = Records[record.Deployed]{
		k.Deployed, d,
		func(_ string, r *record.Deployed) string { return k.Deployed.Key(r.Service) },
	}
	d.Entries = Records[record.Entry]{k.Entries, d, func(_ string, r *record.Entry) string {
		return k.Entries.Key(r.Service, strconv.FormatInt(r.Revision, 10))
	}}
	d.Audits = Records[Audit]{k.Audits, d, nil}
	d.manifests = Records[storedManifest]{k.Manifests, d, nil}
	return d
}

// Keys returns the key schema.
func (s *db) Keys() *Keys { return s.keys }

func (s *db) send(ctx context.Context, ops ...consul.Op) error {
	_, err := s.c.Commit(ctx, ops)
	return err
}

// ring rings the bell of a controller's unit. Writing the same value again would wake no watch.
func (s *db) ring(rcID string) consul.Op { return consul.Set(s.keys.Bells.Key(rcID), []byte(NewID())) }

// rings rings the bells of several controllers' units, each once.
func (s *db) rings(rcIDs ...string) (ops []consul.Op) {
	for _, unit := range rc.UnitsOf(rcIDs) {
		ops = append(ops, s.ring(unit))
	}
	return ops
}

// statusOf returns nil for a missing or unreadable status. The owner writes it again.
func (s *db) statusOf(found map[string]consul.Pair, rcID string) *rc.Status {
	st, err := s.Statuses.decodeIn(found, s.keys.Statuses.Key(rcID))
	if err != nil || st.Index == 0 {
		return nil
	}
	return &st.Value
}
