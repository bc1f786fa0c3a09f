package reconcile

// AllActions lists every action, for metrics.
var AllActions = []Action{Adopt, Repair, Place, Upgrade, Stop, Remove, Expel, Mark, Move, Return, Release, Shrink, Switch}
