package checker

import (
	"slices"
	"strconv"
)

// orphanPages is where a node's record says that its orphans are listed.
type orphanPages struct {
	Edition string `json:"edition"`
	Count   int    `json:"count"`
}

// orphanPage is one page of the list, at orphans/<node>/<n>.
type orphanPage struct {
	Page    int        `json:"page"`
	Edition string     `json:"edition"`
	Epoch   string     `json:"nonce"`
	Orphans []identity `json:"orphans"`
}

func (k *Key) orphanPage() *orphanPage { return record[orphanPage](k, "orphans") }

// lists reports whether a node says that it runs a pod without a matching intent. While it writes its list anew, what can be
// read of the new one counts: nodes write a page before their record leads to it.
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

// echoes is R1 on the node's side: a record that bears an epoch leads to pages that were written before, and bear it too. They
// may have been written over by then, where the record is one that its sender had given up on.
func (j *judgement) echoes(w *Write) {
	for i := range w.Changes {
		c := &w.Changes[i]
		if p := c.After.orphanPage(); p != nil {
			j.listed[listedPage{nodeBelow(c.Key, "orphans/"), p.Edition, p.Page}] = p.Epoch
		}
		n, before := c.After.nodeRecord(), c.Before.nodeRecord()
		if n == nil || n.Pages == nil || before != nil && before.Pages != nil && *before.Pages == *n.Pages && before.Epoch == n.Epoch {
			continue
		}
		j.looked("R1 echoed")
		for page := range n.Pages.Count {
			if epoch, written := j.listed[listedPage{n.Name, n.Pages.Edition, page}]; !written || epoch != n.Epoch {
				j.violated("R1", "echoed before the pages of orphans", w.Index, "%s echoes %s and leads to %+v; page %d bears %q", n.Name, n.Epoch, *n.Pages, page, epoch)
			}
		}
	}
}

// listedPage names a page that a node has written.
type listedPage struct {
	node, edition string
	page          int
}
