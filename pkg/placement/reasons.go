package placement

// AllReasons lists every reason, for metrics.
var AllReasons = []Reason{Selector, NotAlive, NotSettled, Drained, Resources, Ports, MaxPerNode}
