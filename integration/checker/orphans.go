package checker

import (
	"slices"
	"strconv"
)

type orphanPages struct {
	Edition string `json:"edition"`
	Count   int    `json:"count"`
}

// orphanPage is at orphans/<node>/<n>.
type orphanPage struct {
	Page    int        `json:"page"`
	Edition string     `json:"edition"`
	Epoch   string     `json:"nonce"`
	Orphans []identity `json:"orphans"`
}

func (k *Key) orphanPage() *orphanPage { return record[orphanPage](k, "orphans") }

// lists reports whether a node lists a pod as an orphan, also on pages that its record does not point to yet, because
// nodes write pages before their record.
func (s *state) lists(node, id string) bool {
	n, _ := s.node(node)
	if n == nil {
		return false
	}
	if n.Pages == nil {
		return slices.ContainsFunc(n.Orphans, func(o identity) bool { return o.id() == id })
	}
	for i := 0; ; i++ {
		p := s.get(prefix + "orphans/" + node + "/" + strconv.Itoa(i)).orphanPage()
		if p == nil {
			return false
		}
		if slices.ContainsFunc(p.Orphans, func(o identity) bool { return o.id() == id }) {
			return true
		}
	}
}

// echoes judges R1 on the nodes: a record with an epoch points to pages that were written before it, with the same
// epoch. They may be overwritten since, if the node gave up waiting for the write of its record.
func (j *judgement) echoes(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		if p := c.After.orphanPage(); p != nil {
			j.listed[listedPage{nodeBelow(c.Key, "orphans/"), p.Edition, p.Page}] = p.Epoch
		}
		n, before := c.After.nodeRecord(), c.Before.nodeRecord()
		if n == nil || n.Pages == nil ||
			before != nil && before.Pages != nil && *before.Pages == *n.Pages && before.Epoch == n.Epoch {
			continue
		}
		j.looked("R1 echoed")
		for page := range n.Pages.Count {
			if epoch, written := j.listed[listedPage{n.Name, n.Pages.Edition, page}]; !written || epoch != n.Epoch {
				j.violated("R1", "echoed before the pages of orphans", w.Index,
					"%s echoes %s and leads to %+v; page %d bears %q", n.Name, n.Epoch, *n.Pages, page, epoch)
			}
		}
	}
}

type listedPage struct {
	node, edition string
	page          int
}
