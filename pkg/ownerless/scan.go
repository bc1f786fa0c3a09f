package ownerless

import (
	"maps"
	"slices"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Record is one record. About is the identity of its pod as a text, or the id of its controller or unit.
type Record struct {
	Of          Facts
	Node, About string
	N           int    // its position in the caller's list of such records
	Key         string // its key, for alerts
}

// RCID returns "" if the record names no controller.
func (r *Record) RCID() string {
	id, _, _ := strings.Cut(r.About, "/")
	return id
}

// subject is a pod on a node or, without a node, a pod or a controller.
type subject struct{ node, about string }

// Each returns one record for each id of a controller or unit.
func Each(of Facts, about []string) []Record {
	return field.Each(about, func(id string) Record { return Record{Of: of, About: id} })
}

// Known are the facts.
type Known map[subject]Facts

// Note adds the facts of records.
func (k Known) Note(records ...Record) {
	for _, r := range records {
		if r.Of == Placement {
			r.Node = ""
			k[subject{"", r.RCID()}] |= Siblings
		}
		k[subject{r.Node, r.About}] |= r.Of
	}
}

// Place adds the facts of a placement and its ghosts.
func (k Known) Place(p *pod.Placement) Record {
	r := Record{Of: Placement, Node: p.Node, About: p.Identity.String()}
	k.Note(r, Record{Of: Copy, Node: p.Node, About: r.About})
	for _, g := range p.Ghosts {
		k.Note(Record{Of: Copy, Node: g.Node, About: r.About})
	}
	return r
}

func (k Known) of(r *Record) Facts {
	has := k[subject{r.Node, r.About}] | k[subject{"", r.About}] | k[subject{"", r.RCID()}]
	if r.RCID() != "" {
		has |= Named
	}
	return has
}

// Finding is a record without an owner.
type Finding struct {
	Kind *Kind
	Record
	Has Facts // what is known
}

// Scan returns the records without an owner, in their order. A fact can lack only if all records of its sort were read.
// whole has these sorts. Records of local services need no owner.
func Scan(whole Facts, known Known, records []Record) (found []Finding) {
	for _, r := range records {
		if (pod.Identity{RCID: r.RCID()}).Local() {
			continue
		}
		has := known.of(&r)
		for i := range Kinds {
			if k := &Kinds[i]; k.Of == r.Of && k.Lacks&^(whole|Named) == 0 && k.Lacks&has == 0 && k.Has&^has == 0 {
				found = append(found, Finding{k, r, has})
				break
			}
		}
	}
	return found
}

// Alerts returns at most so many texts of alerts, by key.
func Alerts(found []Finding, most int) map[string]string {
	by, alerts := map[string][]Finding{}, map[string]string{}
	for _, f := range found {
		if f.Kind.Text != "" {
			key := f.Kind.Key + f.RCID()
			by[key] = append(by[key], f)
		}
	}
	keys := slices.Sorted(maps.Keys(by))
	for _, key := range keys[:min(len(keys), most)] {
		alerts[key] = textOf(by[key])
	}
	return alerts
}

func textOf(found []Finding) string {
	const few = 3
	var counts, keys []string
	of, nodes := map[Name]int{}, map[string]bool{}
	for _, f := range found {
		of[f.Kind.Name]++
		nodes[f.Node], keys = true, append(keys, f.Key)
	}
	for _, k := range Kinds {
		if k.Text == found[0].Kind.Text {
			counts = append(counts, field.Count(of[k.Name], k.Noun))
		}
	}
	return strings.NewReplacer("{rc}", found[0].RCID(), "{records}", strings.Join(counts, " and "), "{key}",
		slices.Min(keys),
		"{nodes}", field.Few(slices.Sorted(maps.Keys(nodes)), few, ", ")).Replace(found[0].Kind.Text)
}
