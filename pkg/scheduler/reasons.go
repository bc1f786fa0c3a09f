package scheduler

// AllReasons lists every reason, for metrics.
var AllReasons = []Reason{Selector, NotAlive, NotSettled, Drained, Avoided, Resources, Ports, MaxPerNode}
