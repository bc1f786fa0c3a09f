//go:build !nocompanions

package farm

// heedCompanions: minimum and bound are those of the service while there are companions.
const heedCompanions = true
