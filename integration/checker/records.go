package checker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"
)

// See docs/consul-keys.md.
const (
	prefix     = "rcfarm/"
	keySchema  = prefix + "schema"
	keyBreaker = prefix + "breaker"
)

type identity struct {
	RCID  string `json:"rc_id"`
	Role  string `json:"role"`
	Index int    `json:"index"`
}

func (i identity) id() string { return fmt.Sprintf("%s/%s.%d", i.RCID, i.Role, i.Index) }

type placement struct {
	identity
	Node     string         `json:"node"`
	Digest   string         `json:"digest"`
	Ports    map[string]int `json:"ports"`
	RunState string         `json:"run_state"`
	Revision int64          `json:"revision"`
	Ghosts   []struct {
		Node     string         `json:"node"`
		Revision int64          `json:"revision"` // zero: this copy continues to run until the new copy is available
		Lost     bool           `json:"lost"`
		Gone     bool           `json:"gone"`  // its machine was lost when the owner last looked
		Ports    map[string]int `json:"ports"` // nil: the ports of the placement
		// DeadIndex is the index of the dead node's record, and identifies the death.
		DeadIndex uint64 `json:"dead_index"`
	} `json:"ghosts"`
	AdoptedAtGeneration int64      `json:"adopted_at_generation"`
	ChangedAt           time.Time  `json:"changed_at"`
	LostSince           *time.Time `json:"lost_since"`
	DeadIndex           uint64     `json:"dead_index"`
	StoppingSince       *time.Time `json:"stopping_since"`
	Standby             bool       `json:"standby"` // registered under the name for standbys
	// Avoid has nodes on which the pod never became available. An entry with a digest is the first node of two.
	Avoid []struct {
		Node   string    `json:"node"`
		Since  time.Time `json:"since"`
		Digest string    `json:"digest"`
	} `json:"avoid"`
}

const (
	running = "running"
	stopped = "stopped"
)

func (p *placement) ghostOn(node string) (revision int64, ok bool) {
	for _, g := range p.Ghosts {
		if g.Node == node {
			return g.Revision, true
		}
	}
	return 0, false
}

func (p *placement) isGhostOn(node string) bool {
	_, ok := p.ghostOn(node)
	return ok
}

type intent struct {
	identity
	Digest   string `json:"digest"`
	State    string `json:"state"`
	Revision int64  `json:"revision"`
}

type reality struct {
	identity
	Digest         string `json:"digest"`
	Revision       int64  `json:"revision"`
	State          string `json:"state"`
	Available      bool   `json:"available"`
	NeverAvailable bool   `json:"never_available"`
	Hopeless       bool   `json:"hopeless"`
	Standby        bool   `json:"standby"`
}

type controller struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	Labels        map[string]string `json:"labels"`
	Manifest      string            `json:"manifest"`
	Manifests     map[string]string `json:"group_manifests"`
	Strategy      string            `json:"strategy"`
	NodeSelector  string            `json:"node_selector"`
	Mode          string            `json:"mode"`
	ReplicaGroups []struct {
		Role    string `json:"role"`
		Count   int    `json:"count"`
		Ordered bool   `json:"ordered"`
	} `json:"replica_groups"`
	MinAvailable *int    `json:"min_available"`
	MaxSurge     *int    `json:"max_surge"`
	DeletedAt    *string `json:"deleted_at"`
	Generation   int64   `json:"generation"`
	Disabled     bool    `json:"disabled"`
	// AllowMassStop is the generation that may stop many pods at once.
	AllowMassStop int64    `json:"allow_mass_stop"`
	Service       *service `json:"service"`
	InPlace       *inPlace `json:"in_place"`
	Deadline      length   `json:"progress_deadline"`
}

type inPlace struct {
	From  string            `json:"from"` // digest
	Roles map[string]string `json:"from_groups"`
}

func (c *controller) manifestOf(role string) string { return cmp.Or(c.Manifests[role], c.Manifest) }

// formerOf returns a role's digest before an upgrade in place.
func (i *inPlace) formerOf(role string) string { return cmp.Or(i.Roles[role], i.From) }

// staysPut: pods of a static controller keep their nodes; only a forced drain stops them.
func (c *controller) staysPut() bool { return c.Strategy == "static" }

func (c *controller) desired() int {
	n := 0
	for _, g := range c.ReplicaGroups {
		n += g.Count
	}
	return n
}

func (c *controller) wanted(role string) int {
	for _, g := range c.ReplicaGroups {
		if g.Role == role {
			return g.Count
		}
	}
	return 0
}

func (c *controller) minimum() int {
	if c.MinAvailable != nil {
		return min(*c.MinAvailable, c.desired())
	}
	return max(0, c.desired()-1)
}

func (c *controller) surge() int {
	if c.MaxSurge != nil {
		return *c.MaxSurge
	}
	return 1
}

type nodeRecord struct {
	Name     string `json:"name"`
	Capacity struct {
		Slots  int   `json:"slots"`
		CPU    int64 `json:"cpu"`    // thousandths of a core; zero: no limit
		Memory int64 `json:"memory"` // bytes; zero: no limit
	} `json:"capacity"`
	PortRange struct {
		Min int `json:"min"`
		Max int `json:"max"`
	} `json:"port_range"`
	Labels     map[string]string `json:"labels"`
	Epoch      string            `json:"nonce"`
	TTL        length            `json:"ttl"`
	Enforces   bool              `json:"enforces_stop_after"`
	ConsulNode string            `json:"consul_node"`
	Pages      *orphanPages      `json:"orphan_pages"`
	Orphans    []identity        `json:"orphans"` // written by preparers of earlier versions
}

type nodeOps struct {
	Unschedulable bool              `json:"unschedulable"`
	Labels        map[string]string `json:"labels"`
	Drain         *drain            `json:"drain"`
}

type drain struct {
	Since    time.Time  `json:"since"`
	Deadline *time.Time `json:"deadline"`
	Force    bool       `json:"force"`
}

// stops reports whether pods on the node are stopped at that time, even below minima.
func (d *drain) stops(at int64) bool {
	return d != nil && d.Force && (d.Deadline == nil || d.Deadline.UnixNano() <= at)
}

type reservation struct {
	Claims map[string]claim `json:"holders"`
}

type claim struct {
	Ports []int `json:"ports"`
	resources
}

// resources are CPU in thousandths of a core, and memory in bytes.
type resources struct {
	CPU    int64 `json:"cpu"`
	Memory int64 `json:"memory"`
}

func (r resources) plus(o resources) resources {
	return resources{CPU: r.CPU + o.CPU, Memory: r.Memory + o.Memory}
}

func (r resources) exceeds(n *nodeRecord) bool {
	return n.Capacity.CPU > 0 && r.CPU > n.Capacity.CPU || n.Capacity.Memory > 0 && r.Memory > n.Capacity.Memory
}

func (r *reservation) ports() map[string][]int {
	out := map[string][]int{}
	if r != nil {
		for id, h := range r.Claims {
			out[id] = h.Ports
		}
	}
	return out
}

type request struct {
	RCID string   `json:"rc_id"`
	Kind string   `json:"kind"`
	Node string   `json:"node"`
	Pod  identity `json:"pod"`
}

const (
	forgetPod   = "forget-pod"
	sweepOrphan = "sweep-orphan"
)

type manifestRecord struct {
	Manifest struct {
		manifestStops
		MinReady *length `json:"min_ready"`
		Health   struct {
			MinReady *length `json:"min_ready"`
		} `json:"health"`
		Ports []struct {
			Name    string `json:"name"`
			Port    int    `json:"port"`
			Dynamic bool   `json:"dynamic"`
		} `json:"ports"`
		Launchables []struct {
			Resources resources `json:"resources"`
			StopGrace length    `json:"stop_grace"`
			Restart   struct {
				Policy string `json:"policy"`
			} `json:"restart"`
		} `json:"launchables"`
	} `json:"manifest"`
}

// takes returns zero if the manifest is not known.
func (m *manifestRecord) takes() (sum resources) {
	if m != nil {
		for _, l := range m.Manifest.Launchables {
			sum = sum.plus(l.Resources)
		}
	}
	return sum
}

type breakerRecord struct {
	Tripped bool `json:"tripped"`
}

type lockValue struct {
	Farm        string `json:"farm"`
	Incarnation string `json:"incarnation"`
}

type auditRecord struct {
	Who  string `json:"who"`
	What string `json:"what"`
	RCID string `json:"rc_id"`
}

type statusRecord struct {
	RCID               string `json:"rc_id"`
	ObservedGeneration int64  `json:"observed_generation"`
	Owner              string `json:"owner"`
	Conditions         []struct {
		Type   string `json:"type"`
		True   bool   `json:"true"`
		Reason string `json:"reason"`
	} `json:"conditions"`
}

func (s *statusRecord) is(condition string) bool {
	for _, c := range s.Conditions {
		if c.Type == condition && c.True {
			return true
		}
	}
	return false
}

type schemaRecord struct {
	Epoch string `json:"nonce"`
}

// record decodes a key once. It returns nil if the key is missing, of another group, a marker, or unreadable. If a
// hostile node wrote it, record decodes the version before.
func record[T any](k *Key, groupName string) *T {
	if k != nil && k.hostile() {
		k = k.trusted
	}
	if k == nil || group(k.Name) != groupName || strings.HasSuffix(k.Name, "/") {
		return nil
	}
	if done, ok := k.record.(*T); ok {
		return done
	}
	v := new(T)
	if json.Unmarshal(k.Value, v) != nil {
		v = nil
	}
	k.record = v
	return v
}

func (k *Key) placement() *placement     { return record[placement](k, "pods") }
func (k *Key) intent() *intent           { return record[intent](k, "intent") }
func (k *Key) reality() *reality         { return record[reality](k, "reality") }
func (k *Key) controller() *controller   { return record[controller](k, "rcs") }
func (k *Key) nodeRecord() *nodeRecord   { return record[nodeRecord](k, "nodes") }
func (k *Key) nodeOps() *nodeOps         { return record[nodeOps](k, "nodeops") }
func (k *Key) reservation() *reservation { return record[reservation](k, "reservations") }
func (k *Key) lockValue() *lockValue     { return record[lockValue](k, "locks") }
func (k *Key) audit() *auditRecord       { return record[auditRecord](k, "audit") }
func (k *Key) status() *statusRecord     { return record[statusRecord](k, "status") }
func (k *Key) request() *request         { return record[request](k, "requests") }
func (k *Key) manifest() *manifestRecord { return record[manifestRecord](k, "manifests") }
func (k *Key) rollout() *rolloutRecord   { return record[rolloutRecord](k, "rollouts") }
func (k *Key) deployed() *deployedRecord { return record[deployedRecord](k, "deployments") }

func (k *Key) tripped() bool {
	b := record[breakerRecord](k, "breaker")
	return b != nil && b.Tripped
}

func (k *Key) schema() schemaRecord {
	if s := record[schemaRecord](k, "schema"); s != nil {
		return *s
	}
	return schemaRecord{}
}

func nodeOfIntent(key string) string { return nodeBelow(key, "intent/") }

// nodeBelow returns the name up to the slash after this part of the schema.
func nodeBelow(key, part string) string {
	node, _, _ := strings.Cut(strings.TrimPrefix(key, prefix+part), "/")
	return node
}

func realityKey(node, id string) string { return prefix + "reality/" + node + "/" + id }

// An empty rcID means all controllers.
func (s *state) placementsOf(rcID string) []*placement {
	var out []*placement
	for _, k := range s.groups["pods"] {
		if p := k.placement(); p != nil && (rcID == "" || p.RCID == rcID) {
			out = append(out, p)
		}
	}
	return out
}

func (s *state) node(name string) (*nodeRecord, *Key) {
	for key, k := range s.groups["nodes"] {
		if strings.HasSuffix(key, "/"+name) {
			return k.nodeRecord(), k
		}
	}
	return nil, nil
}

func (s *state) alive(name string) bool {
	_, k := s.node(name)
	return k != nil && k.Session != ""
}

// lost: a copy that is marked with `lost_since` is lost until a preparer is back, although Consul may know the machine
// again long before (docs/design/leaving.md).
func (s *state) lost(name string, marked bool) bool {
	return s.machineLost(name) || marked && !s.alive(name)
}

// machineLost reports whether no preparer holds the record and the machine's agent has failed or left.
func (s *state) machineLost(name string) bool {
	n, k := s.node(name)
	if n == nil || k.Session != "" {
		return false
	}
	c, known := s.checks[checkName{n.ConsulNode, "serfHealth"}]
	return !known || c.status == critical
}

// mayStay reports whether a controller's pods may be on a node. Selectors in these runs are empty or one "key=value".
func (s *state) mayStay(rc *controller, node string) bool {
	o := s.ops(node)
	return !o.Unschedulable && o.Drain == nil && rc.selects(s.labels(node))
}

func (c *controller) selects(labels map[string]string) bool {
	key, value, ok := strings.Cut(c.NodeSelector, "=")
	return c.NodeSelector == "" || ok && labels[key] == value
}

// labels: operators' labels take precedence over the node's own.
func (s *state) labels(node string) map[string]string {
	all := map[string]string{}
	if n, _ := s.node(node); n != nil {
		maps.Copy(all, n.Labels)
	}
	maps.Copy(all, s.ops(node).Labels)
	return all
}

func (s *state) ops(node string) nodeOps {
	for key, k := range s.groups["nodeops"] {
		if o := k.nodeOps(); o != nil && strings.HasSuffix(key, "/"+node) {
			return *o
		}
	}
	return nodeOps{}
}
