package pod

import "strings"

// KindLocal is the kind of a local service's reality: no farm adopts, counts or stops the pod (ADR 22).
const KindLocal = "local"

// No controller's id begins with localPrefix, because ULIDs have neither l nor o.
const localPrefix = "local-"

// LocalRC returns the RCID of a local service's pods.
func LocalRC(service string) string { return localPrefix + service }

// LocalService returns "" for a pod of a controller.
func (i Identity) LocalService() string {
	service, local := strings.CutPrefix(i.RCID, localPrefix)
	if !local {
		return ""
	}
	return service
}

// Local reports whether the pod belongs to a local service.
func (i Identity) Local() bool { return i.LocalService() != "" }
