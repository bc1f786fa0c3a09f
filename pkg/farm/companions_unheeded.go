//go:build nocompanions

package farm

// heedCompanions is false in builds that exist to show that the checker of integration/chaos finds what happens when each revision of a
// service keeps to a minimum of its own; see docs/testing.md.
const heedCompanions = false
