// Package rollout decides how a service goes from its revisions to a new one (ADR 16). It is pure: no I/O, no clock, no randomness.
// Begin and Retarget make the record at rollouts/<service>, and say what changes in the controllers of the revisions. Decide takes that record
// and what its runner has read, and says what is written next: the record, counts and bounds of controllers, and when to look again.
// The runner writes all of a decision in one transaction, and remembers nothing between two of them.
package rollout
