package checker

import (
	"maps"
	"path"
	"slices"
)

// A pod comes to a node only while the node's labels match its controller's selector: by the labels of the very moment of the write, whoever
// had not heard of them yet. Pods that are there already are another matter.

// unlabelled are the labels that a node had until some moment.
type unlabelled struct {
	labels map[string]string
	until  int64
}

// rememberLabels notes which labels a node had before operators gave it others.
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

// selected judges where a pod comes to.
func (j *judgement) selected(w *Write, p *placement) {
	rc := w.before(prefix + "rcs/" + p.RCID).controller()
	if rc == nil || rc.NodeSelector == "" {
		return
	}
	j.looked(ruleSelected)
	if labels := w.state.labels(p.Node); !rc.selects(labels) {
		j.violated("P3", "placed where the selector does not match", w.Index, "%s on %s, which has %v; the selector is %s", p.id(), p.Node, labels, rc.NodeSelector)
	}
}

// ruleSelected is what placements of controllers with a selector are counted under.
const ruleSelected = "P3 selected"

// unselected reports whether the node did not match a moment ago: a farm may not have heard yet that it does again.
func (j *judgement) unselected(w *Write, rc *controller, node string) bool {
	return slices.ContainsFunc(j.labelled[node], func(l unlabelled) bool { return j.recently(w, l.until) && !rc.selects(l.labels) })
}
