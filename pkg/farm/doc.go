// Package farm is the loop that owns replication controllers. It claims the locks of units, watches the records that
// may change, and carries out the plans of package reconcile. A unit is a service with all its revisions, or one
// controller without a service (ADR 29).
//
// # Who calls it
//
// Package app runs one Farm for each session, one after the other. On the farm that leads, app also calls Farm.Lead,
// which does the work that belongs to no controller (ADR 27). A program that owns one controller by itself calls New;
// see the example. A program that only needs its own scheduler runs app.Farm with app.FarmConfig.Scheduler;
// docs/examples/farm is such a program.
//
// # What it promises
//
//   - Only the owner of a unit changes its pods: each write is conditional on the fence of the unit's lock (P1).
//   - A write lands only if the records from which it was computed have not changed (P2).
//   - The transaction that places a pod on a node also reserves the pod's share of the node (P3).
//   - No move, upgrade or scaling down takes a controller below its minimum of available pods, and no write places more
//     pods than desired and surge allow (P6). Three things outrank the minimum: a forced drain after its deadline, the
//     deletion of a controller, and a sweep of orphans.
//   - Everything that the promises need is in the records. Another farm can continue from them at any moment (P7).
//
// A bell, a watch or a push only hints that a look may find something to do. The promises do not depend on it.
//
// # How it works
//
// Watches fill a cache. The events of the cache become keys of a queue: ids of units. A worker takes a key. If the farm
// is preferred for the unit, or if the unit has had no owner for a second, the worker claims the unit's lock. Then it
// makes a look:
//
//	read    all records of the unit, at one moment
//	passes  one for each controller, the highest revision first:
//	          guess    the nodes that the plan probably needs, so that one request also reads their reservations
//	          read     what nodes report about the controller's pods
//	          decide   what to change: reconcile.Compute
//	          assign   nodes to new pods, by package place
//	          pack     changes into batches, each with its conditions
//	          write    the batches
//	step    of the rollout, by rollout.Decide, in one transaction; then the passes once more
//	next    choose when to look again even if no bell rings
//
// Sweeps find changes that cause no event. A resync compares all records of a controller, every 10 minutes.
// docs/consul-keys.md describes the keys in Consul, docs/architecture.md the types.
//
// # Its files, in reading order
//
//	a program calls       one observe farm
//	the leader alone      lead electorate gate census unclaimed
//	asking for looks      takeover sweep mend sync router unreadable ownership
//	a look                handle look rollout
//	a pass of a look      pass breaker alerts read decide details pack reserve write minimum commit push
//	kept between looks    controller unit view reports memory manifests kit metrics
//	from the watches      nodes orphans cache errors
package farm
