// Package rollout decides how a service goes from its revisions to a new one (ADR 16). It is pure: no I/O, no clock, no randomness.
// Begin and Retarget make the record at rollouts/<unit>, and say what changes in the controllers of the revisions. Decide
// takes that record and what the owner of the unit has read and found, and says what is written next: the record, counts
// and bounds of controllers, and when to look again. The owner writes all of a decision in one transaction, a step, and
// remembers nothing between two of them (ADR 29).
package rollout
