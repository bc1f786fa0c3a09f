// Package plan turns the document of a service into a plan that people can read (ADR 16). It reads the service as it is through Client,
// decides what has to change, refuses what cannot work, and lists the operations in the order in which they happen.
//
// What decides is pure: EvalSpecChange says what differs, RollingStrategy what follows. Only the operations' Execute acts, through the
// same Client. The writes of a plan are one transaction: its first operations fill a Draft, the last one that writes commits it. Operations
// about pods write nothing, since only the owner of a controller does (P1): their Execute waits until the owner has done it.
//
// A plan can be saved and carried out later. Its operations are not kept: SavedStrategy plans the saved document again, and refuses a
// plan that was made on something else, or that would do something else than it showed.
package plan
