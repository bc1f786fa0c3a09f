package rc

import (
	"fmt"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// UnitOf returns the unit that a controller belongs to, which its id tells: a service with all its revisions, or the
// controller alone. The ids of a service's controllers are <unit>-<revision> and <unit>-<revision>-pre, and the unit is
// a ULID, which has no hyphen. What has another form is a unit by itself. See ADR 29.
func UnitOf(id string) string {
	if unit, _, more := strings.Cut(id, "-"); more && field.IsULID(unit) {
		return unit
	}
	return id
}

// RevisionID returns the id of the controller of a service's revision.
func RevisionID(unit string, revision int64) string { return fmt.Sprintf("%s-%d", unit, revision) }

// PreDeployID returns the id of the controller that runs before a service's revision.
func PreDeployID(unit string, revision int64) string {
	return RevisionID(unit, revision) + "-pre"
}

// IsPreDeploy reports whether a controller runs before a service's revision, which its id tells.
func IsPreDeploy(id string) bool {
	return UnitOf(id) != id && strings.HasSuffix(id, "-pre")
}

// UnitsOf returns the units of some controllers, each once, in the order of the controllers.
func UnitsOf(ids []string) []string {
	var units []string
	known := make(map[string]bool, len(ids))
	for _, id := range ids {
		if unit := UnitOf(id); !known[unit] {
			known[unit] = true
			units = append(units, unit)
		}
	}
	return units
}
