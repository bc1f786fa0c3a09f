package scheduler

// AllReasons lists every reason, for metrics.
var AllReasons = []Reason{Selector, NotAlive, NotSettled, Drained, Relabelled, Avoided, Resources, Ports, MaxPerNode}
