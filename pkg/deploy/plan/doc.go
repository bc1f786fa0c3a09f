// Package plan turns the document of a service into a plan that people can read (ADR 16). It refuses a change that
// cannot work. Operations are in the order in which they happen.
//
// Only the execution of an operation changes the cluster, through Client. All writes of a plan are one transaction,
// which its last operation that writes commits. Operations about pods only wait, since only the owner of a controller
// changes its pods (P1).
//
// A saved plan does not contain its operations: SavedPlanner plans the document again. It refuses if the records have
// changed, or if the new operations differ from those that the saved plan showed.
package plan
