package rc

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// UnitOf returns a controller's unit: a service, or the controller alone. Ids of a service's controllers are
// <unit>-<revision> and <unit>-<revision>-pre. <unit> is a ULID, which has no hyphen.
func UnitOf(id string) string {
	if unit, _, more := strings.Cut(id, "-"); more && field.IsULID(unit) {
		return unit
	}
	return id
}

// RevisionID returns the controller's id of a revision.
func RevisionID(unit string, revision int64) string { return fmt.Sprintf("%s-%d", unit, revision) }

// PreDeployID returns the id of the controller that runs before a revision.
func PreDeployID(unit string, revision int64) string {
	return RevisionID(unit, revision) + "-pre"
}

// IsPreDeploy reports whether an id is a PreDeployID.
func IsPreDeploy(id string) bool {
	return UnitOf(id) != id && strings.HasSuffix(id, "-pre")
}

// RevisionName returns the controller's name of a revision, such as web-r3.
func RevisionName(service string, revision int64) string {
	return fmt.Sprintf("%s-r%d", service, revision)
}

// PreDeployName returns a name such as web-r3-pre-deploy.
func PreDeployName(service string, revision int64) string {
	return RevisionName(service, revision) + "-pre-deploy"
}

// ParseRevisionName is the inverse of RevisionName. is: the name has this form.
func ParseRevisionName(name string) (service string, revision int64, is bool) {
	i := strings.LastIndex(name, "-r")
	if i <= 0 {
		return "", 0, false
	}
	service = name[:i]
	revision, err := strconv.ParseInt(name[i+len("-r"):], 10, 64)
	return service, revision, err == nil && revision > 0 && RevisionName(service, revision) == name
}

// NameOf returns the name for an id of RevisionID or PreDeployID. is: the id has this form.
func NameOf(service, id string) (name string, is bool) {
	unit := UnitOf(id)
	number, _ := strings.CutSuffix(strings.TrimPrefix(id, unit+"-"), "-pre")
	switch revision, err := strconv.ParseInt(number, 10, 64); {
	case err != nil, revision < 1:
		return "", false
	case id == RevisionID(unit, revision):
		return RevisionName(service, revision), true
	default:
		return PreDeployName(service, revision), id == PreDeployID(unit, revision)
	}
}

// UnitsOf returns the units of controllers, each once, in order.
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
