// Package reconcile decides what the owner of a replication controller does next. Compute takes a Snapshot and returns
// a Plan. Compute is pure: it uses no I/O, no clock and no randomness.
//
// # What a plan is
//
// Each change is about one identity, and a plan changes an identity at most once. One transaction writes all parts of a
// change, or nothing. If a change makes another change possible, the next look makes the other change.
//
// The records may change between the read and the write. So each change names the conditions that the farm adds to its
// transaction:
//
//   - NeedsMinimum: enough pods are still available;
//   - NeedsReports: the reports of some nodes are unchanged;
//   - NeedsDead: some nodes are still dead;
//   - NeedsSchema: the epoch is unchanged;
//   - NeedsBreaker: the breaker has not tripped.
//
// # What it promises
//
//   - After the farm has carried out a plan, the next plan continues the work. In the end a plan has no changes.
//   - A pod stops only if its controller, a rollout or an operator asks for the stop. There are two exceptions: a
//     second copy of an identity stops, and a pod that was never available stops once, to get a second node.
//   - If the record of a pod has vanished or cannot be read, the pod is not changed (P4).
//   - An identity, its ports and its share become free only when its stop is confirmed: its node has reported the stop
//     at the revision of the intent to stop, or at a higher one (P5).
//   - A plan stops an available pod only if enough other pods of the service stay available for the minimum. The pods
//     of all revisions are counted together. A plan never places more pods than desired and surge allow (P6).
//   - After the store went back in time, no pod is added until all living nodes have reported (R1). Pods that run
//     without an intent are adopted unchanged (R2).
//   - Revisions of intents only grow (R3).
//
// # In which order
//
// Compute begins with the steps that free something or record facts: confirmed stops, requests, orphans, lost machines.
// Then it follows the controller's record:
//
//	deleted    all pods stop; when no pod is left and no node can still report one, the controller's records go
//	disabled   no pod is placed, and no pod is removed
//	otherwise  forced drains; moves whose new copy is available; pods of lost machines; second nodes;
//	           the number of pods; transfers; upgrades; names of services; labels
//
// A later step sees the changes of the earlier steps, and skips the pods that they changed.
//
// # Its files, in reading order
//
//	compute
//	departures adopt leftover requests
//	eachnode labels drain moving secondnode move scale stage upgrade
//	clocks report
//	epoch ordered ended placer lots manifests budget massstop minimum draft companions plan facts snapshot fleet
package reconcile
