package checker

import (
	"maps"
	"path"
	"slices"
)

// A pod may be placed on a node only if the labels match the selector at the moment of the write, even if the farm has
// not read them yet.

type unlabelled struct {
	labels map[string]string
	until  int64
}

func (j *judgement) rememberLabels(c *Change, at int64) {
	if group(c.Key) != "nodeops" {
		return
	}
	said := func(k *Key) map[string]string {
		if o := k.nodeOps(); o != nil {
			return o.Labels
		}
		return nil
	}
	before, after := said(c.Before), said(c.After)
	if maps.Equal(before, after) {
		return
	}
	j.result.Relabelled++
	node := path.Base(c.Key)
	was := map[string]string{}
	if n, _ := j.state.node(node); n != nil {
		maps.Copy(was, n.Labels)
	}
	maps.Copy(was, before)
	j.labelled[node] = append(j.labelled[node], unlabelled{was, at})
}

func (j *judgement) selected(w *Write, p *placement) {
	rc := w.before(prefix + "rcs/" + p.RCID).controller()
	if rc == nil || rc.NodeSelector == "" {
		return
	}
	j.looked(ruleSelected)
	if labels := w.state.labels(p.Node); !rc.selects(labels) {
		j.violated("P3", "placed where the selector does not match", w.Index,
			"%s on %s, which has %v; the selector is %s", p.id(), p.Node, labels, rc.NodeSelector)
	}
}

const ruleSelected = "P3 selected"

// unselected reports whether the labels did not match a moment ago: a farm may not have read yet that they match.
func (j *judgement) unselected(w *Write, rc *controller, node string) bool {
	return slices.ContainsFunc(j.labelled[node], func(l unlabelled) bool {
		return j.recently(w, l.until) && !rc.selects(l.labels)
	})
}
