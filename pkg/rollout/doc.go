// Package rollout decides how a service goes from its old revisions to a new one, in stages (ADR 16). It is pure: it
// uses no I/O, no clock and no randomness. So if a farm dies, any other farm can continue the rollout from the records.
//
// # How it is used
//
// A deployment makes the record rollouts/<unit> with Begin or, if a rollout is under way, with Retarget (another
// revision) or Rescale (other counts). The owner of the unit then makes one step after the other:
//
//	for {
//		d := rollout.Decide(record, observed) // what was read, and what the passes of this look found
//		// write d.Record, d.RCs, d.Delete and d.Audit in one transaction, if there is anything to write
//		// ask the gate d.Gate, if there is one: its answer is in the next Observed
//		// wait for a bell, for the answer, or for d.Again; until d.Ended
//	}
//
// The next Decide carries out the Request that rcctl wrote into the record, or refuses it.
//
// # What it promises
//
//   - Decide never asks for the same change twice. If its decision was carried out, the next decision changes nothing
//     until something else has changed.
//   - A decision never adds or stops pods. It changes controllers, mostly their counts. The owner adds and stops pods
//     until the pods match the counts (P6, pkg/farm/reconcile). Each controller has the limits of the whole service,
//     service.min and service.max, and the owner keeps to them.
//   - A decision changes no count while a controller cannot be read, while the breaker is tripped, or while the store
//     has gone back in time. Record.BlockedReason has the reason. Afterwards the timeout of the stage starts again.
//   - Unknown states are no progress: Decide uses a status only if it has the present generation of its controller and
//     the present epoch.
//   - If a record passes Check, Decide neither panics nor overflows. This is also true for records that another version
//     or a person has written.
//
// # States and phases
//
//	progressing          -> waiting-for-promote, paused, rolling-back, done, failed, aborted
//	waiting-for-promote  -> progressing (promote, or auto_promote), paused, rolling-back, aborted
//	paused               -> progressing or rolling-back, as before the pause (resume), rolling-back, aborted
//	rolling-back         -> failed (the old revision has all pods again), paused, aborted
//	any of these         -> failed (the new controller is gone, or there is no revision to go back to)
//	done, failed, aborted   the end: the transaction that writes the audit entry removes the record
//
// The phases while a rollout progresses:
//
//	pre-deploy -> before-stage -> planning -> moving -> after-stage -> delay -> before-stage ...
//	after-stage -> promoting -> before-stage ...                                 canary
//	after-stage -> promoting -> joining -> leaving -> keeping -> before-stage ...  blue-green
//	after-stage -> ending                                                        all counts are final
//
// A Strategy chooses the counts that a stage changes, and the phase after the stage.
package rollout
