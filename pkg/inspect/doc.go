// Package inspect joins what the cluster's records say into what people ask: why a controller is not as it should be, where pods are
// and how they are, how far a rollout is, whether a wait is over. It is pure: records and the time are arguments, and what comes back
// are views and sentences. Who reads the records and who prints the answers is no concern of it; rcctl is the first that does.
package inspect
