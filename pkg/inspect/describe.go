package inspect

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// maxPodEvents bounds how many acts a description lists.
const maxPodEvents = 10

// PodDescription is all that is known of one copy of a pod.
type PodDescription struct {
	PodView
	NodeAlive bool         `json:"node_alive"` // its preparer lives
	NodeAPI   string       `json:"node_api,omitempty"`
	ChangedAt *time.Time   `json:"changed_at,omitempty"` // when the farm decided last
	Ghosts    []pod.Ghost  `json:"ghosts,omitempty"`
	Intent    *pod.Intent  `json:"intent,omitempty"`  // what the node is told
	Reality   *pod.Reality `json:"reality,omitempty"` // what the node says
	Events    []PodEvent   `json:"events"`            // what was done about it, the newest last
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
