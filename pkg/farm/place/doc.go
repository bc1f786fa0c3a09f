// Package place finds nodes for the pods that a plan adds. A scheduler, built in or outside, names the nodes that may
// take the pods. The package reads the reservations of some of them, and placement.Assign chooses. It writes nothing to
// Consul: reservations can change until the farm's transaction places the pods. docs/design/placing.md has the order of
// the steps and the reasons.
//
// # How it is used
//
// A farm has one Finder for each session, and one Search for each pass over a controller:
//
//	Begin      starts with the nodes that the look has read, and with the Memory of the last pass
//	Guess      picks likely nodes before there is a plan; the pass reads their reservations with its other records
//	Read       receives the reservations that the pass has read
//	Balance    makes the allocations of an outside scheduler match the placements
//	Assign     finds nodes for the plan's adds, and turns the adds into changes
//	Reserved   returns the reservations as they were read; the pass writes its changes on top of them
//	End        makes the nodes available to other passes again
//
// # What it promises
//
// In one lot (reconcile.Lot), no two pods get the same capacity. For a later lot of the pass, the search knows how many
// pods the earlier lots have put on each node, but not the shares of these pods. The farm checks the shares when it
// packs the batches.
//
// Passes of one farm that run at the same time take different nodes if there are enough nodes (scheduler.Ledger).
//
// # Its files, in reading order
//
//	search look candidates account finder outside pause usage scarcity view
package place
