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

// Bounds of records of nodes.
const (
	// MaxSlots is the most pods of a node, because Consul bounds the size of its reservation.
	MaxSlots = 10_000
	// MaxCPU and MaxMemory are the most of a node: as much as a single pod may ask for.
	MaxCPU    = field.MaxPodCPU
	MaxMemory = field.MaxPodMemory
	// MaxPortsInUse bounds a list of ports in use.
	MaxPortsInUse = 128
	// MaxOrphans bounds a node's orphans, on at most MaxOrphanPages pages.
	MaxOrphans     = MaxSlots
	MaxOrphanPages = 512
	// In bytes: maxText of a name that is not ours, maxWord of a word for which a newer version may have further
	// values.
	maxText = 255
	maxURL  = field.MaxTextBytes
	maxWord = field.MaxName
	maxLack = 1024
	// maxLacks bounds what a node lacks for containers.
	maxLacks = 16
)

// most is in bytes.
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

// Check returns why a node's record cannot be used. Unknown fields and words are allowed: a newer preparer may write
// them.
func (n *Node) Check() error {
	var errs field.Errors
	errs.CheckName("name", n.Name)
	n.texts(func(name string, text *string, most int) { errs.CheckBytes(name, *text, most) })
	errs.CheckLabels("labels", n.Labels, field.MaxLabels)
	field.CheckRange(&errs, "capacity.slots", n.Capacity.Slots, 0, MaxSlots)
	field.CheckRange(&errs, "capacity.cpu", n.Capacity.CPU, 0, MaxCPU)
	field.CheckRange(&errs, "capacity.memory", n.Capacity.Memory, 0, MaxMemory)
	if !n.PortRange.valid() {
		errs.Add("port_range", field.Text(fmt.Sprintf("%d to %d", n.PortRange.Min, n.PortRange.Max)),
			fmt.Sprintf("two ports from 1 to %d, the first not above the second, or none", field.MaxPort))
	}
	if !inOrder(n.PortsInUse) || len(n.PortsInUse) > MaxPortsInUse {
		errs.Add("ports_in_use", field.Text(fmt.Sprintf("%d numbers", len(n.PortsInUse))),
			fmt.Sprintf("at most %d different numbers from 1 to %d, the lowest first", MaxPortsInUse, field.MaxPort))
	}
	if c := n.Containers; c != nil {
		errs.CheckBytes("containers.runc", c.Runc, maxWord)
		if len(c.Lacks) > maxLacks {
			errs.Add("containers.lacks", field.Text(fmt.Sprintf("%d entries", len(c.Lacks))),
				fmt.Sprintf("at most %d entries", maxLacks))
		}
		for _, lack := range c.Lacks {
			errs.CheckBytes("containers.lacks", lack, maxLack)
		}
	}
	// The reader of `regressed` (store.WitnessesOf) ignores an impossible value.
	if p := n.OrphanPages; p != nil {
		p.check(&errs)
	}
	if len(n.Orphans) > MaxOrphans {
		errs.Add("orphans", field.Text(fmt.Sprintf("%d entries", len(n.Orphans))),
			fmt.Sprintf("0 to %d entries", MaxOrphans))
	}
	field.CheckRange(&errs, "orphans_left_out", n.OrphansLeftOut, 0, math.MaxInt32)
	return errs.Err()
}

func (o *OrphanPages) check(errs *field.Errors) {
	errs.CheckBytes("orphan_pages.edition", o.Edition, maxWord)
	field.CheckRange(errs, "orphan_pages.count", o.Count, 0, MaxOrphanPages)
	field.CheckRange(errs, "orphan_pages.orphans", o.Orphans, 0, MaxOrphans)
}

func (p PortRange) valid() bool {
	return p == PortRange{} || 1 <= p.Min && p.Min <= p.Max && p.Max <= field.MaxPort
}

// inOrder reports whether numbers are ports in ascending order, each once.
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

// Fit cuts fields because of which the record would be refused, and returns their names, because one field must not
// keep a node from writing its record. It changes nothing that the record shares with others.
func (n *Node) Fit() (cut []string) {
	n.texts(func(name string, text *string, most int) {
		if len(*text) > most {
			*text, cut = field.CutBytes(*text, most), append(cut, name)
		}
	})
	if fits := fitLabels(n.Labels); len(fits) < len(n.Labels) {
		n.Labels, cut = fits, append(cut, "labels")
	}
	c := Capacity{
		Slots: min(max(n.Capacity.Slots, 0), MaxSlots), CPU: min(max(n.Capacity.CPU, 0), MaxCPU),
		Memory: min(max(n.Capacity.Memory, 0), MaxMemory),
	}
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
	if fits := n.Containers.fit(); fits != nil {
		n.Containers, cut = fits, append(cut, "containers")
	}
	if n.WentBack != "" && !field.IsULID(n.WentBack) {
		n.WentBack, cut = "", append(cut, "regressed")
	}
	return cut
}

// fit returns a copy that fits; nil: nothing must be cut.
func (c *Containers) fit() *Containers {
	long := func(lack string) bool { return len(lack) > maxLack }
	if c == nil || len(c.Runc) <= maxWord && len(c.Lacks) <= maxLacks && !slices.ContainsFunc(c.Lacks, long) {
		return nil
	}
	fits := Containers{Runc: field.CutBytes(c.Runc, maxWord), Idmapped: c.Idmapped}
	for _, lack := range c.Lacks[:min(len(c.Lacks), maxLacks)] {
		fits.Lacks = append(fits.Lacks, field.CutBytes(lack, maxLack))
	}
	return &fits
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

// FitOrphans returns the orphans that a node may list, and how many it leaves out.
func FitOrphans(orphans []pod.Orphan) (fit []pod.Orphan, leftOut int) {
	for i := range orphans {
		if len(fit) < MaxOrphans && orphans[i].Check() == nil {
			fit = append(fit, orphans[i])
		}
	}
	return fit, len(orphans) - len(fit)
}

// UnmarshalJSON moves orphans that no farm could adopt to Refused.
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

// Check returns why a page cannot be used.
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

// Check returns why the settings cannot be used.
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

// MaxClaimPorts is enough for the ports of two versions during an upgrade in place.
const MaxClaimPorts = 2 * field.MaxPorts

// Check returns why a reservation cannot be used.
func (r *Reservation) Check() error {
	var errs field.Errors
	errs.CheckBytes("labels.own", r.Labels.Own, maxWord)
	errs.CheckBytes("labels.operators", r.Labels.Operators, maxWord)
	for key, claim := range r.Claims {
		claim.check(&errs, key)
	}
	return errs.Err()
}

// A share without an identity only takes capacity.
func (c *Claim) check(errs *field.Errors, key string) {
	const path = "holders"
	before := len(*errs)
	if c.Pod != (pod.Identity{}) {
		if err := c.Pod.Check(); err != nil {
			errs.Add(path+"."+key+".pod", c.Pod.String(),
				"a controller, a role and an index, as in a placement: "+err.Error())
		} else if !isKeyOf(key, c.Pod) {
			errs.Add(path+"."+key, c.Pod.String(), "the pod that the key names")
		}
	}
	field.CheckRange(errs, "cpu", c.CPU, 0, field.MaxPodCPU)
	field.CheckRange(errs, "memory", c.Memory, 0, field.MaxPodMemory)
	if !inOrder(c.Ports) || len(c.Ports) > MaxClaimPorts {
		errs.Add("ports", field.Text(fmt.Sprintf("%d numbers", len(c.Ports))),
			fmt.Sprintf("at most %d different numbers from 1 to %d, the lowest first", MaxClaimPorts, field.MaxPort))
	}
	for _, e := range (*errs)[before:] {
		if !strings.HasPrefix(e.Field, path) {
			e.Field = path + "." + key + "." + e.Field
		}
	}
}

// isKeyOf compares a key with Identity.String, without making that text.
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
