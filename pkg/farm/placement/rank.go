package placement

import (
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Ranked is a candidate as a pass sees it that looks for a node for one more pod.
type Ranked struct {
	Node   string
	Reason scheduler.Reason // why it takes none; empty: it takes one
	Group  string           // value of the label that the pods are spread over
	Pods   int              // of the controller
	Load   int              // how full it would be with the pod: see scheduler.Usage.Load
	Score  int              // of the controller's preferences
	Used   scheduler.Usage  // as it is
}

// Rank returns the candidates in the order in which Assign takes them for the first pod of the request. Those that take none are last, in order of preference.
func Rank(r Request) []Ranked {
	var takes, others []Ranked
	queue, rule, id := newQueue(r.candidates(), r.PerGroup), r.rule(), r.Pods[0]
	for c := queue.pop(); c != nil; c = queue.pop() {
		n := Ranked{Node: c.name, Reason: rule.Refuses(r.found(c, id), id), Group: c.group, Pods: c.mine, Load: c.load, Score: c.score, Used: c.used}
		if n.Reason == "" {
			takes = append(takes, n)
		} else {
			others = append(others, n)
		}
	}
	return append(takes, others...)
}
