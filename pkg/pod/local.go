package pod

import "strings"

// KindLocal is the kind of a reality whose pod belongs to a service of its node alone: no controller has it, and no farm adopts, counts or stops
// it (ADR 22).
const KindLocal = "local"

// localPrefix begins what stands in place of a controller's id. No id of a controller begins so: ULIDs have neither l nor o.
const localPrefix = "local-"

// LocalRC returns what stands in place of a controller's id in the identities of a local service's pods.
func LocalRC(service string) string { return localPrefix + service }

// LocalService returns the local service that a pod belongs to; "" for a pod of a controller.
func (id Identity) LocalService() string {
	service, local := strings.CutPrefix(id.RCID, localPrefix)
	if !local {
		return ""
	}
	return service
}

// Local reports whether the pod belongs to a local service.
func (id Identity) Local() bool { return id.LocalService() != "" }
