package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Bounds of what records of nodes say. What people may ask for in documents is bounded by manifest, field and pod.
const (
	// MaxSlots is how many pods a node may offer room for: what is reserved on it is one record, which Consul bounds.
	MaxSlots = 10_000
	// MaxCPU and MaxMemory are the most that a node may offer: what a single pod may ask for.
	MaxCPU    = field.MaxPodCPU
	MaxMemory = field.MaxPodMemory
	// MaxPortsInUse bounds how many numbers a record lists that others hold.
	MaxPortsInUse = 128
	// MaxOrphans is how many pods a node lists that run without a matching intent, and MaxOrphanPages on how many pages at
	// the most.
	MaxOrphans     = MaxSlots
	MaxOrphanPages = 512
	// maxText bounds an address, a version or a name that is none of ours, maxURL a URL and maxWord a word of which a
	// newer version may have others, in bytes.
	maxText = 255
	maxURL  = field.MaxTextBytes
	maxWord = field.MaxName
)

// texts are the texts of a record, by their fields, with the most bytes that each may take.
func (n *Node) texts(do func(name string, text *string, most int)) {
	do("host", &n.Host, maxText)
	do("address", &n.Address, maxText)
	do("consul_node", &n.ConsulNode, maxText)
	do("version", &n.Version, maxText)
	do("emulation_version", &n.EmulationVersion, maxText)
	do("api", &n.API, maxURL)
	do("incarnation", &n.Incarnation, maxText)
	do("nonce", &n.Epoch, maxWord)
	do("isolation", &n.Isolation, maxText)
	do("anonymous", &n.Anonymous, maxWord)
	do("intents", &n.Intents, maxWord)
}

// Check reports why nothing can be decided by a node's record. Unknown fields and words are fine: a newer preparer may
// have written them.
func (n *Node) Check() error {
	var errs field.Errors
	errs.CheckName("name", n.Name)
	n.texts(func(name string, text *string, most int) { errs.CheckBytes(name, *text, most) })
	errs.CheckLabels("labels", n.Labels, field.MaxLabels)
	field.CheckRange(&errs, "capacity.slots", n.Capacity.Slots, 0, MaxSlots)
	field.CheckRange(&errs, "capacity.cpu", n.Capacity.CPU, 0, MaxCPU)
	field.CheckRange(&errs, "capacity.memory", n.Capacity.Memory, 0, MaxMemory)
	if !n.PortRange.valid() {
		errs.Add("port_range", field.Text(fmt.Sprintf("%d to %d", n.PortRange.Min, n.PortRange.Max)), fmt.Sprintf("two ports from 1 to %d, the first not above the second, or none", field.MaxPort))
	}
	if !inOrder(n.PortsInUse) || len(n.PortsInUse) > MaxPortsInUse {
		errs.Add("ports_in_use", field.Text(fmt.Sprintf("%d numbers", len(n.PortsInUse))), fmt.Sprintf("at most %d different numbers from 1 to %d, the lowest first", MaxPortsInUse, field.MaxPort))
	}
	// What `regressed` may say is for whoever heeds it (store.WitnessesOf): a word that cannot be so is ignored, and the
	// rest of the record counts.
	if p := n.OrphanPages; p != nil {
		p.check(&errs)
	}
	if len(n.Orphans) > MaxOrphans {
		errs.Add("orphans", field.Text(fmt.Sprintf("%d entries", len(n.Orphans))), fmt.Sprintf("0 to %d entries", MaxOrphans))
	}
	field.CheckRange(&errs, "orphans_left_out", n.OrphansLeftOut, 0, math.MaxInt32)
	return errs.Err()
}

func (p *OrphanPages) check(errs *field.Errors) {
	errs.CheckBytes("orphan_pages.edition", p.Edition, maxWord)
	field.CheckRange(errs, "orphan_pages.count", p.Count, 0, MaxOrphanPages)
	field.CheckRange(errs, "orphan_pages.orphans", p.Orphans, 0, MaxOrphans)
}

func (r PortRange) valid() bool {
	return r == PortRange{} || 1 <= r.Min && r.Min <= r.Max && r.Max <= field.MaxPort
}

// inOrder reports whether numbers are ports, each greater than the one before it.
func inOrder(ports []int) bool {
	last := 0
	for _, port := range ports {
		if port <= last || port > field.MaxPort {
			return false
		}
		last = port
	}
	return true
}

// Fit cuts what the record would be refused for, and returns the names of those fields: a node that could not write its
// record because of one field would be no node. What no value stands for, its name, stays. It changes nothing that the
// record shares with others.
func (n *Node) Fit() (cut []string) {
	n.texts(func(name string, text *string, most int) {
		if len(*text) > most {
			*text, cut = field.CutBytes(*text, most), append(cut, name)
		}
	})
	if fits := fitLabels(n.Labels); len(fits) < len(n.Labels) {
		n.Labels, cut = fits, append(cut, "labels")
	}
	c := Capacity{Slots: min(max(n.Capacity.Slots, 0), MaxSlots), CPU: min(max(n.Capacity.CPU, 0), MaxCPU), Memory: min(max(n.Capacity.Memory, 0), MaxMemory)}
	if c != n.Capacity {
		n.Capacity, cut = c, append(cut, "capacity")
	}
	if !n.PortRange.valid() {
		n.PortRange, cut = PortRange{}, append(cut, "port_range")
	}
	if !inOrder(n.PortsInUse) || len(n.PortsInUse) > MaxPortsInUse {
		ports := slices.DeleteFunc(slices.Clone(n.PortsInUse), func(p int) bool { return p < 1 || p > field.MaxPort })
		slices.Sort(ports)
		ports = slices.Compact(ports)
		n.PortsInUse, cut = ports[:min(len(ports), MaxPortsInUse)], append(cut, "ports_in_use")
	}
	if n.WentBack != "" && !field.IsULID(n.WentBack) {
		n.WentBack, cut = "", append(cut, "regressed")
	}
	return cut
}

func fitLabels(labels map[string]string) map[string]string {
	fits := make(map[string]string, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if len(fits) < field.MaxLabels && field.IsLabel(key, labels[key]) {
			fits[key] = labels[key]
		}
	}
	return fits
}

// FitOrphans returns those of a node's orphans that it may list, and how many it leaves out.
func FitOrphans(orphans []pod.Orphan) (fit []pod.Orphan, leftOut int) {
	for i := range orphans {
		if len(fit) < MaxOrphans && orphans[i].Check() == nil {
			fit = append(fit, orphans[i])
		}
	}
	return fit, len(orphans) - len(fit)
}

// UnmarshalJSON reads a page. Orphans that no farm could take over are left out, and said in Refused: the others are
// pods all the same.
func (p *OrphanPage) UnmarshalJSON(data []byte) error {
	type plain OrphanPage // without this method
	var read struct {
		plain
		Orphans []json.RawMessage `json:"orphans"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return fmt.Errorf("parse page: %w", err)
	}
	*p = OrphanPage(read.plain)
	p.Orphans, p.Refused = make([]pod.Orphan, 0, min(len(read.Orphans), MaxOrphans)), nil
	for i, text := range read.Orphans {
		var o pod.Orphan
		err := json.Unmarshal(text, &o)
		if err == nil {
			err = o.Check()
		}
		if err != nil {
			p.Refused = append(p.Refused, fmt.Sprintf("orphans[%d]: %v", i, err))
			continue
		}
		p.Orphans = append(p.Orphans, o)
	}
	return nil
}

// Check reports why a page cannot be used.
func (p *OrphanPage) Check() error {
	var errs field.Errors
	errs.CheckName("node", p.Node)
	field.CheckRange(&errs, "page", p.Page, 0, MaxOrphanPages-1)
	errs.CheckBytes("edition", p.Edition, maxWord)
	errs.CheckBytes("nonce", p.Epoch, maxWord)
	if n := len(p.Orphans) + len(p.Refused); n > MaxOrphans {
		errs.Add("orphans", field.Text(fmt.Sprintf("%d entries", n)), fmt.Sprintf("0 to %d entries", MaxOrphans))
	}
	return errs.Err()
}

// Check reports why what operators said of a node cannot be used.
func (o *Ops) Check() error {
	var errs field.Errors
	errs.CheckName("name", o.Name)
	errs.CheckLabels("labels", o.Labels, field.MaxLabels)
	errs.CheckBytes("hold_released", o.HoldReleased, maxWord)
	if d := o.Drain; d != nil {
		errs.CheckTime("drain.since", d.Since)
		if d.Deadline != nil {
			errs.CheckTime("drain.deadline", *d.Deadline)
		}
	}
	return errs.Err()
}

// MaxClaimPorts is how many ports one identity may hold: those of two versions, while one takes the place of the other.
const MaxClaimPorts = 2 * field.MaxPorts

// Check reports why nothing may be placed by a reservation.
func (r *Reservation) Check() error {
	var errs field.Errors
	errs.CheckBytes("labels.own", r.Labels.Own, maxWord)
	errs.CheckBytes("labels.operators", r.Labels.Operators, maxWord)
	for key, claim := range r.Claims {
		claim.check(&errs, key)
	}
	return errs.Err()
}

// check records what is wrong with a claim. One that does not say whose it is only takes room.
func (h *Claim) check(errs *field.Errors, key string) {
	const path = "holders"
	before := len(*errs)
	if h.Pod != (pod.Identity{}) {
		if err := h.Pod.Check(); err != nil {
			errs.Add(path+"."+key+".pod", h.Pod.String(), "a controller, a role and an index, as in a placement: "+err.Error())
		} else if !isKeyOf(key, h.Pod) {
			errs.Add(path+"."+key, h.Pod.String(), "the pod that the key names")
		}
	}
	field.CheckRange(errs, "cpu", h.CPU, 0, field.MaxPodCPU)
	field.CheckRange(errs, "memory", h.Memory, 0, field.MaxPodMemory)
	if !inOrder(h.Ports) || len(h.Ports) > MaxClaimPorts {
		errs.Add("ports", field.Text(fmt.Sprintf("%d numbers", len(h.Ports))), fmt.Sprintf("at most %d different numbers from 1 to %d, the lowest first", MaxClaimPorts, field.MaxPort))
	}
	for _, e := range (*errs)[before:] {
		if !strings.HasPrefix(e.Field, path) {
			e.Field = path + "." + key + "." + e.Field
		}
	}
}

// isKeyOf reports whether a key is Identity.String, without making one.
func isKeyOf(key string, id pod.Identity) bool {
	rest, ok := strings.CutPrefix(key, id.RCID)
	if ok {
		rest, ok = strings.CutPrefix(rest, "/")
	}
	if ok {
		rest, ok = strings.CutPrefix(rest, id.Role)
	}
	if ok {
		rest, ok = strings.CutPrefix(rest, ".")
	}
	var buf [20]byte
	return ok && rest == string(strconv.AppendInt(buf[:0], int64(id.Index), 10))
}
