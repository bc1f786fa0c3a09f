package farm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// orphansOn finds the orphans of a node in its record alone, or in the pages that were read.
func TestOrphansOn(t *testing.T) {
	t.Parallel()
	orphans := func(n int) []pod.Orphan {
		of := make([]pod.Orphan, n)
		for i := range of {
			of[i] = pod.Orphan{
				Identity: pod.Identity{RCID: "web", Role: "main", Index: i}, PodID: "web",
				Digest: strings.Repeat("d", 64),
			}
		}
		return of
	}
	pages := func(edition string, count int) *node.OrphanPages {
		return &node.OrphanPages{Edition: edition, Count: count}
	}
	for name, tt := range map[string]struct {
		record node.Node
		read   *orphanList
		want   int
		known  bool
	}{
		"a preparer that has just begun": {record: node.Node{}, known: true},
		"has just begun again": {
			record: node.Node{},
			read:   &orphanList{edition: "e1", orphans: orphans(2)}, want: 2, known: true,
		},
		"nothing runs without an intent": {
			record: node.Node{Epoch: "n", OrphanPages: pages("", 0)},
			known:  true,
		},
		"no more": {
			record: node.Node{Epoch: "n", OrphanPages: pages("", 0)},
			read:   &orphanList{edition: "e1", orphans: orphans(2)}, known: true,
		},
		"pages that were not read": {record: node.Node{Epoch: "n", OrphanPages: pages("e1", 1)}},
		"pages that were read": {
			record: node.Node{Epoch: "n", OrphanPages: pages("e1", 1)},
			read:   &orphanList{edition: "e1", orphans: orphans(2)}, want: 2, known: true,
		},
		"other pages than were read": {
			record: node.Node{Epoch: "n", OrphanPages: pages("e2", 1)},
			read:   &orphanList{edition: "e1", orphans: orphans(2)}, want: 2,
		},
		"of an older preparer": {
			record: node.Node{Epoch: "n", Orphans: orphans(3)}, want: 3,
			known: true,
		},
		"of an older preparer, and not all of them": {record: node.Node{
			Epoch: "n", Orphans: orphans(3),
			OrphansLeftOut: 1,
		}, want: 3},
		"of an older preparer, after one with pages": {
			record: node.Node{Epoch: "n", Orphans: orphans(3)},
			read:   &orphanList{edition: "e1", orphans: orphans(2)}, want: 3, known: true,
		},
		"of an older preparer, which has just begun":  {record: node.Node{Orphans: orphans(3)}, want: 3, known: true},
		"nothing on an older one without its intents": {record: node.Node{Epoch: "n"}, known: true},
	} {
		w := emptyCache()
		tt.record.Name = "n1"
		if tt.read != nil {
			w.listed["n1"] = *tt.read
		}
		got, unread := w.orphansOn(&tt.record)
		if len(got) != tt.want || unread == tt.known {
			t.Errorf("%s: %d orphans, unread %v; want %d, %v", name, len(got), unread, tt.want, !tt.known)
		}
		w.records[0] = map[string]*node.View{"n1": {Node: tt.record, Alive: true}}
		w.publish()
		if v := w.views["n1"]; len(v.Orphans) != tt.want || v.Spoke("n") != (tt.known && tt.record.Epoch == "n") {
			t.Errorf("%s: the view %+v", name, v)
		}
		ask := fmt.Sprint(w.unread())
		if asks := tt.record.OrphanPages != nil && !tt.known; asks != (ask == "[n1]") {
			t.Errorf("%s: to be read are %s", name, ask)
		}
	}
}

// The list of a node is forgotten with its record, and when it has no orphans any more.
func TestForgottenOrphans(t *testing.T) {
	t.Parallel()
	for name, record := range map[string]*node.Node{
		"no record":     nil,
		"lists nothing": {Name: "n1", OrphanPages: &node.OrphanPages{}},
	} {
		w := emptyCache()
		w.listed["n1"] = orphanList{edition: "e1", orphans: make([]pod.Orphan, 2)}
		w.records[0] = map[string]*node.View{}
		if record != nil {
			w.records[0]["n1"] = &node.View{Node: *record, Alive: true}
		}
		w.publish()
		w.records[0]["n1"] = &node.View{Node: node.Node{Name: "n1"}, Alive: true}
		w.publish()
		if v := w.views["n1"]; len(v.Orphans) != 0 {
			t.Errorf("%s: the orphans are back: %+v", name, v)
		}
	}
}
