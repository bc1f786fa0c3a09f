package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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

// PodView is one replica on one node: the placement joined with the node's report.
type PodView struct {
	Name   string `json:"name"` // <pod id>-<role>-<index>, for display
	RCID   string `json:"rc_id"`
	RCName string `json:"rc_name"` // empty if the rc has no readable record
	PodID  string `json:"pod_id"`
	Role   string `json:"role"`
	Index  int    `json:"index"`
	Node   string `json:"node"`
	// placed, ghost (moved off this node, stop not confirmed), orphan (no placement) or local (without a controller)
	Kind string `json:"kind"`
	// as reported; "placed" before the first report, "lost" if the node is gone, "unknown" if the report cannot be
	// read, or if the pod has no placement and the node has no preparer
	State     string `json:"state"`
	Available bool   `json:"available"`
	Restarts  int    `json:"restarts"`
	// that the farm asks for; for an orphan, that the node runs
	Digest   string `json:"digest"`
	Revision int64  `json:"revision"` // of the intent; zero for an orphan
	// that the node has applied; zero before the first report
	AppliedRevision int64             `json:"applied_revision"`
	RunState        pod.RunState      `json:"run_state"`        // that the farm asks for; empty for an orphan
	Labels          map[string]string `json:"labels,omitempty"` // that the farm gave it; an orphan has none
	Ports           map[string]int    `json:"ports,omitempty"`
	Message         string            `json:"message"`
	LastExit        *pod.Exit         `json:"last_exit,omitempty"`
	Since           *time.Time        `json:"since,omitempty"` // when the reported state began
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

// The states of a PodView that no node reports.
const (
	statePlaced = "placed"
	Lost        = "lost"
	Unknown     = "unknown" // it is not known whether the pod runs; see PodView.State
)

// JoinPods joins placements with the reports of nodes, and adds ghosts and pods without a placement. rcNames has the
// names of controllers, by id. The result is sorted by rc name, role, index, node.
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
		default: // no farm has placed it there
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
		losses.correct(&views[i])
	}
	slices.SortFunc(views, func(a, b PodView) int {
		return cmp.Or(cmp.Compare(a.RCName, b.RCName), cmp.Compare(a.RCID, b.RCID), cmp.Compare(a.Role, b.Role),
			cmp.Compare(a.Index, b.Index), cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Node, b.Node))
	})
	return views
}

func placedView(p *pod.Placement, r *pod.Reality) PodView {
	v := viewOf(p.Identity, p.Node, p.PodID, Placed, r)
	v.Digest, v.Revision, v.RunState, v.Ports, v.Labels = p.Digest, p.Revision, p.RunState, p.Ports, p.Labels
	v.LostSince, v.UnmanagedSince = p.LostSince, p.UnmanagedSince
	v.Available = p.LostSince == nil && p.RunState == pod.Running && r != nil && r.Available && r.Digest == p.Digest
	switch {
	case p.LostSince != nil:
		v.State = Lost
		v.note("its node is gone since %s", At(*p.LostSince))
	case p.UnmanagedSince != nil:
		v.note("the preparer of its node is away since %s", At(*p.UnmanagedSince))
	}
	switch {
	case r == nil:
		v.note("%s has not reported yet", p.Node)
	case p.RunState == pod.Stopped && r.State != pod.StateStopped:
		if v.State != Lost {
			v.State = string(pod.StateStopping)
		}
		v.note("stop requested, not confirmed by its node")
	case r.Digest != p.Digest && r.State != pod.StateStopped:
		v.note("still runs manifest %s", Short(r.Digest))
	}
	return v
}

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

func (p *PodView) note(format string, args ...any) {
	if p.Message != "" {
		p.Message += "; "
	}
	p.Message += fmt.Sprintf(format, args...)
}

// MarkUnreadable marks the pods whose report cannot be read.
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
			v.State, v.Message = Unknown, "the report of node "+v.Node+" cannot be read"
		}
	}
}

// FilterPods keeps the pods of a controller, of a node, or both; empty means all.
func FilterPods(views []PodView, rcID, node string) []PodView {
	return slices.DeleteFunc(views, func(v PodView) bool {
		return rcID != "" && v.RCID != rcID || node != "" && v.Node != node
	})
}

// SlashName names a pod by its controller.
func (p *PodView) SlashName() string {
	return fmt.Sprintf("%s/%s.%d", cmp.Or(p.RCName, p.RCID), p.Role, p.Index)
}

// Identity is the identity of the replica.
func (p *PodView) Identity() pod.Identity {
	return pod.Identity{RCID: p.RCID, Role: p.Role, Index: p.Index}
}

// LogLabels returns the label of each copy's log lines: its name, or, if another copy has that name, its controller and
// node, too.
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

// PodsNamed returns the copies with exactly that name, else those whose name begins with it. If all are copies of one
// pod, it returns only the placed copy.
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
	if placed < 0 ||
		slices.ContainsFunc(found, func(v PodView) bool { return v.Identity() != found[placed].Identity() }) {
		return found
	}
	return found[placed : placed+1]
}

const maxPodEvents = 10

// PodDescription is all that is known about a copy.
type PodDescription struct {
	PodView
	NodeAlive   bool         `json:"node_alive"` // its preparer lives
	NodeAPI     string       `json:"node_api,omitempty"`
	ChangedAt   *time.Time   `json:"changed_at,omitempty"` // when the farm last decided about it
	Ghosts      []pod.Ghost  `json:"ghosts,omitempty"`
	Intent      *pod.Intent  `json:"intent,omitempty"`
	Reality     *pod.Reality `json:"reality,omitempty"`
	LastReality *pod.Reality `json:"last_reality,omitempty"` // the last report, if it may not be true any more
	Events      []PodEvent   `json:"events"`                 // from audit records, the newest last
}

// PodEvent is one line of an audit record about a pod.
type PodEvent struct {
	At   time.Time `json:"at"`
	Who  string    `json:"who"`
	What string    `json:"what"`
}

// eventsOf returns the newest lines of audit records about a pod, the newest last.
func eventsOf(acts []store.Audit, id pod.Identity) []PodEvent {
	events := []PodEvent{}
	name := id.Role + "." + strconv.Itoa(id.Index)
	for _, a := range acts {
		for _, line := range a.Changes {
			if slices.ContainsFunc(strings.Fields(line),
				func(word string) bool { return strings.Trim(word, ":,;()") == name }) {
				events = append(events, PodEvent{At: a.At.UTC(), Who: a.Who, What: line})
			}
		}
	}
	return events[max(0, len(events)-maxPodEvents):]
}

// PodRecords has what Describe needs besides a PodView.
type PodRecords struct {
	Node       *store.Rec[node.Node] // nil: unreadable; a missing record is empty
	Placements []store.Rec[pod.Placement]
	Intents    []store.Rec[pod.Intent]
	Reality    *pod.Reality // nil: none
	Acts       []store.Audit
}

// Describe joins all that is known about a copy.
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

// Selected keeps the views that a selector selects.
func Selected[V any](views []V, sel labels.Selector, labelsOf func(*V) map[string]string) []V {
	return slices.DeleteFunc(views, func(v V) bool { return !sel.Matches(labels.Set(labelsOf(&v))) })
}

// LabelsLacking returns the keys that a selector requires and no set has, and all keys of the sets, both sorted.
func LabelsLacking(sel labels.Selector, sets []map[string]string) (lacking, keys []string) {
	all := map[string]bool{}
	for _, set := range sets {
		for key := range set {
			all[key] = true
		}
	}
	requirements, _ := sel.Requirements()
	for i := range requirements {
		r := &requirements[i]
		if key := r.Key(); !all[key] && !r.Matches(labels.Set{}) && !slices.Contains(lacking, key) {
			lacking = append(lacking, key)
		}
	}
	slices.Sort(lacking)
	return lacking, slices.Sorted(maps.Keys(all))
}

// LabelSet returns the labels for selectors, with those that every pod has.
func (p *PodView) LabelSet() map[string]string {
	return ourlabels.OfPod(p.RCID, p.PodID, p.Labels)
}
