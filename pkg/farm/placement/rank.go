package placement

import (
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Ranked is a candidate with what decides its place for one more pod.
type Ranked struct {
	Node   string
	Reason scheduler.Reason // why the node does not take the pod; empty: it does
	Group  string           // the node's value of the spread label
	Pods   int              // of the controller
	Load   int              // how full the node would be with the pod: see scheduler.Usage.Load
	Score  int              // of the controller's preferences
	Used   scheduler.Usage  // without the pod
}

// Rank returns the candidates in the order in which Assign takes them for the request's first pod. Those that do not
// take it come last.
func Rank(r Request) []Ranked {
	var takes, others []Ranked
	queue, rule, id := newQueue(r.candidates(), r.PerGroup), r.rule(), r.Pods[0]
	for c := queue.pop(); c != nil; c = queue.pop() {
		n := Ranked{
			Node: c.name, Reason: rule.Refuses(r.found(c, id), id),
			Group: c.group, Pods: c.mine, Load: c.load, Score: c.score, Used: c.used,
		}
		if n.Reason == "" {
			takes = append(takes, n)
		} else {
			others = append(others, n)
		}
	}
	return append(takes, others...)
}
