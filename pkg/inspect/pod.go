package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	ourlabels "github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// PodView is one replica on one node: the farm's decision joined with the node's report.
type PodView struct {
	Name            string            `json:"name"` // <pod id>-<role>-<index>, for display
	RCID            string            `json:"rc_id"`
	RCName          string            `json:"rc_name"` // empty when the rc has no readable record
	PodID           string            `json:"pod_id"`
	Role            string            `json:"role"`
	Index           int               `json:"index"`
	Node            string            `json:"node"`
	Kind            string            `json:"kind"`  // placed, ghost (left this node, stop not confirmed), orphan (no placement) or local (of its node alone)
	State           string            `json:"state"` // as reported; "placed" before the first report, "lost" when the node is gone, "unknown" when the report cannot be read, or is about a pod that nobody has placed on a node without a preparer
	Available       bool              `json:"available"`
	Restarts        int               `json:"restarts"`
	Digest          string            `json:"digest"`           // that the farm asks for; for an orphan that the node runs
	Revision        int64             `json:"revision"`         // that the farm asks for; zero for an orphan
	AppliedRevision int64             `json:"applied_revision"` // that the node has carried out; zero before the first report
	RunState        pod.RunState      `json:"run_state"`        // that the farm asks for; empty for an orphan
	Labels          map[string]string `json:"labels,omitempty"` // that the farm gave it; none of an orphan
	Ports           map[string]int    `json:"ports,omitempty"`
	Message         string            `json:"message"`
	LastExit        *pod.Exit         `json:"last_exit,omitempty"`
	Since           *time.Time        `json:"since,omitempty"` // in the reported state
	LostSince       *time.Time        `json:"lost_since,omitempty"`
	UnmanagedSince  *time.Time        `json:"unmanaged_since,omitempty"`
}

// The kinds of a PodView.
const (
	Placed = "placed"
	Ghost  = "ghost"
	Orphan = "orphan"
	Local  = "local"
)

// The states of a PodView besides those that nodes report.
const (
	statePlaced = "placed"
	Lost        = "lost"
	Unknown     = "unknown" // its node's report cannot be read
)

// JoinPods joins placements with what nodes report, and adds the copies on nodes that a pod has left and the pods that
// run without a placement. Losses are those of their nodes, and rcNames maps ids of controllers to names. The result is
// sorted by rc name, role, index, node.
func JoinPods(placements []pod.Placement, realities []pod.Reality, losses Losses, rcNames map[string]string) []PodView {
	reported := make(map[store.At]*pod.Reality, len(realities))
	for i := range realities {
		r := &realities[i]
		reported[store.At{Identity: r.Identity, Node: r.Node}] = r
	}
	take := func(id pod.Identity, node string) *pod.Reality {
		at := store.At{Identity: id, Node: node}
		defer delete(reported, at)
		return reported[at]
	}
	views := []PodView{}
	for i := range placements {
		p := &placements[i]
		views = append(views, placedView(p, take(p.Identity, p.Node)))
		for _, g := range p.Ghosts {
			views = append(views, ghostView(p, g, take(p.Identity, g.Node)))
		}
	}
	for i := range realities {
		r := &realities[i]
		switch _, left := reported[store.At{Identity: r.Identity, Node: r.Node}]; {
		case !left || r.State == pod.StateStopped:
		case r.Kind == pod.KindLocal:
			v := viewOf(r.Identity, r.Node, r.LocalService(), Local, r)
			v.Digest, v.Available = r.Digest, r.Available
			views = append(views, v)
		default: // nobody has placed it there
			v := viewOf(r.Identity, r.Node, "", Orphan, r)
			v.Digest = r.Digest
			if _, dead := losses[r.Node]; dead {
				v.note("has no placement")
			} else {
				v.note("has no placement; it runs until its rc adopts or stops it")
			}
			views = append(views, v)
		}
	}
	for i := range views {
		views[i].RCName = rcNames[views[i].RCID]
		losses.believe(&views[i])
	}
	slices.SortFunc(views, func(a, b PodView) int {
		return cmp.Or(cmp.Compare(a.RCName, b.RCName), cmp.Compare(a.RCID, b.RCID), cmp.Compare(a.Role, b.Role),
			cmp.Compare(a.Index, b.Index), cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Node, b.Node))
	})
	return views
}

// placedView is a pod where the farm wants it.
func placedView(p *pod.Placement, r *pod.Reality) PodView {
	v := viewOf(p.Identity, p.Node, p.PodID, Placed, r)
	v.Digest, v.Revision, v.RunState, v.Ports, v.Labels = p.Digest, p.Revision, p.RunState, p.Ports, p.Labels
	v.LostSince, v.UnmanagedSince = p.LostSince, p.UnmanagedSince
	v.Available = p.LostSince == nil && p.RunState == pod.Running && r != nil && r.Available && r.Digest == p.Digest
	switch {
	case p.LostSince != nil:
		v.State = Lost
		v.note("its node is gone since %s", p.LostSince.UTC().Format(time.RFC3339))
	case p.UnmanagedSince != nil:
		v.note("the preparer of its node is away since %s", p.UnmanagedSince.UTC().Format(time.RFC3339))
	}
	switch {
	case r == nil:
		v.note("%s has not reported yet", p.Node)
	case p.RunState == pod.Stopped && r.State != pod.StateStopped:
		if v.State != Lost {
			v.State = string(pod.StateStopping)
		}
		v.note("stop asked for, not confirmed by its node")
	case r.Digest != p.Digest && r.State != pod.StateStopped:
		v.note("still runs manifest %s", Short(r.Digest))
	}
	return v
}

// ghostView is the copy on a node that the pod has left.
func ghostView(p *pod.Placement, g pod.Ghost, r *pod.Reality) PodView {
	v := viewOf(p.Identity, g.Node, p.PodID, Ghost, r)
	v.Digest, v.Revision, v.RunState, v.Labels = p.Digest, g.Revision, pod.Stopped, p.Labels
	if r != nil {
		v.Digest = r.Digest
	}
	v.note("moved to %s; its stop here is not confirmed", p.Node)
	return v
}

func viewOf(id pod.Identity, node, podID, kind string, r *pod.Reality) PodView {
	v := PodView{
		Name: PodName(podID, id), RCID: id.RCID, PodID: podID,
		Role: id.Role, Index: id.Index, Node: node, Kind: kind, State: statePlaced,
	}
	if r != nil {
		v.State, v.Restarts, v.AppliedRevision = string(r.State), r.Restarts, r.Revision
		v.Message, v.LastExit = r.Message, r.LastExit
		if !r.Since.IsZero() {
			v.Since = &r.Since
		}
	}
	return v
}

// note adds a sentence of rcctl's own to what the node says.
func (v *PodView) note(format string, args ...any) {
	if v.Message != "" {
		v.Message += "; "
	}
	v.Message += fmt.Sprintf(format, args...)
}

// MarkUnreadable says of pods whose nodes' reports are there and cannot be read that this is why nothing is known of them.
func MarkUnreadable(views []PodView, bad []error, keys *store.Keys) {
	unreadable := map[string]bool{}
	for _, err := range bad {
		var corrupt *store.CorruptError
		if errors.As(err, &corrupt) {
			unreadable[corrupt.Key] = true
		}
	}
	for i := range views {
		if v := &views[i]; unreadable[keys.Realities.Key(v.Node, v.Identity().String())] {
			v.State, v.Message = Unknown, "what "+v.Node+" reports cannot be read"
		}
	}
}

// FilterPods keeps the pods of one controller, of one node, or both; empty means all.
func FilterPods(views []PodView, rcID, node string) []PodView {
	return slices.DeleteFunc(views, func(v PodView) bool {
		return rcID != "" && v.RCID != rcID || node != "" && v.Node != node
	})
}

// SlashName names a pod by its controller.
func (v *PodView) SlashName() string {
	return fmt.Sprintf("%s/%s.%d", cmp.Or(v.RCName, v.RCID), v.Role, v.Index)
}

// Identity is whose copy it is.
func (v *PodView) Identity() pod.Identity {
	return pod.Identity{RCID: v.RCID, Role: v.Role, Index: v.Index}
}

// LogLabels returns, for each copy, what its lines bear among those of others: the name of the pod, or more where another copy has it, too.
func LogLabels(views []PodView) []string {
	named := map[string]int{}
	for i := range views {
		named[views[i].Name]++
	}
	labels := make([]string, len(views))
	for i := range views {
		if labels[i] = views[i].Name; named[labels[i]] > 1 {
			labels[i] = views[i].SlashName() + "@" + views[i].Node
		}
	}
	return labels
}

// PodsNamed returns the copies that a reference means: those with exactly that name, or else those whose name begins with
// it. Of the copies of one pod, the one where it is placed counts.
func PodsNamed(views []PodView, ref string) []PodView {
	match := func(matches func(name string) bool) []PodView {
		var found []PodView
		for i := range views {
			v := &views[i]
			names := []string{v.Name, v.SlashName(), v.Identity().String()}
			if slices.ContainsFunc(names, matches) {
				found = append(found, *v)
			}
		}
		return found
	}
	found := match(func(name string) bool { return name == ref })
	if len(found) == 0 {
		found = match(func(name string) bool { return strings.HasPrefix(name, ref) })
	}
	placed := slices.IndexFunc(found, func(v PodView) bool { return v.Kind == Placed })
	if placed < 0 || slices.ContainsFunc(found, func(v PodView) bool { return v.Identity() != found[placed].Identity() }) {
		return found
	}
	return found[placed : placed+1]
}

// maxPodEvents bounds how many acts a description lists.
const maxPodEvents = 10

// PodDescription is all that is known of one copy of a pod.
type PodDescription struct {
	PodView
	NodeAlive   bool         `json:"node_alive"` // its preparer lives
	NodeAPI     string       `json:"node_api,omitempty"`
	ChangedAt   *time.Time   `json:"changed_at,omitempty"` // when the farm decided last
	Ghosts      []pod.Ghost  `json:"ghosts,omitempty"`
	Intent      *pod.Intent  `json:"intent,omitempty"`       // what the node is told
	Reality     *pod.Reality `json:"reality,omitempty"`      // what the node says
	LastReality *pod.Reality `json:"last_reality,omitempty"` // what it said last, where that is not believed any more
	Events      []PodEvent   `json:"events"`                 // what was done about it, the newest last
}

// PodEvent is one act about a pod.
type PodEvent struct {
	At   time.Time `json:"at"`
	Who  string    `json:"who"`
	What string    `json:"what"`
}

// eventsOf returns what was done about a pod, the newest last. Acts name pods as ROLE.INDEX.
func eventsOf(acts []store.Audit, id pod.Identity) []PodEvent {
	events := []PodEvent{}
	name := id.Role + "." + strconv.Itoa(id.Index)
	for _, a := range acts {
		for _, line := range a.Changes {
			if slices.ContainsFunc(strings.Fields(line), func(word string) bool { return strings.Trim(word, ":,;()") == name }) {
				events = append(events, PodEvent{At: a.At.UTC(), Who: a.Who, What: line})
			}
		}
	}
	return events[max(0, len(events)-maxPodEvents):]
}

// PodRecords is what a description of a pod is joined from, besides what the list of pods holds.
type PodRecords struct {
	Node       *store.Rec[node.Node] // nil: missing or unreadable
	Placements []store.Rec[pod.Placement]
	Intents    []store.Rec[pod.Intent]
	Reality    *pod.Reality // nil: none
	Acts       []store.Audit
}

// Describe joins all that is known of one copy of a pod.
func Describe(view *PodView, in *PodRecords) PodDescription {
	id := view.Identity()
	d := PodDescription{PodView: *view, Reality: in.Reality, Events: eventsOf(in.Acts, id)}
	if in.Node != nil {
		d.NodeAlive, d.NodeAPI = in.Node.Session != "", in.Node.Value.API
	}
	if d.State == Lost || d.State == Unknown {
		d.Reality, d.LastReality = nil, in.Reality
	}
	for _, rec := range in.Placements {
		if p := rec.Value; p.Identity == id {
			d.Labels, d.Ghosts, d.ChangedAt = p.Labels, p.Ghosts, &p.ChangedAt
		}
	}
	for _, rec := range in.Intents {
		if rec.Value.Identity == id {
			d.Intent = &rec.Value
		}
	}
	return d
}

// Selected keeps what a selector selects.
func Selected[V any](views []V, sel labels.Selector, labelsOf func(*V) map[string]string) []V {
	return slices.DeleteFunc(views, func(v V) bool { return !sel.Matches(labels.Set(labelsOf(&v))) })
}

// LabelSet is what selectors look at: the labels that the farm gave the pod, and those that every pod has. Of an orphan, which nobody has
// placed, there is only the controller.
func (v *PodView) LabelSet() map[string]string {
	return ourlabels.OfPod(v.RCID, v.PodID, v.Labels)
}
