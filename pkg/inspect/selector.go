package inspect

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// FixedRC returns the id of the only controller whose pods a selector can select, "" where it leaves that open.
func FixedRC(sel labels.Selector) string {
	requirements, selectable := sel.Requirements()
	if !selectable {
		return ""
	}
	for _, r := range requirements {
		fixes := r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals || r.Operator() == selection.In
		if values := r.ValuesUnsorted(); r.Key() == pod.RCIDLabel && fixes && len(values) == 1 {
			return values[0]
		}
	}
	return ""
}

// Selected keeps what a selector selects.
func Selected[V any](views []V, sel labels.Selector, labelsOf func(*V) map[string]string) []V {
	return slices.DeleteFunc(views, func(v V) bool { return !sel.Matches(labels.Set(labelsOf(&v))) })
}

// LabelSet is what selectors look at: the labels that the farm gave the pod, and those that every pod has. Of an orphan, which nobody has
// placed, there is only the controller.
func (v *PodView) LabelSet() map[string]string {
	set := map[string]string{}
	maps.Copy(set, v.Labels)
	set[pod.RCIDLabel] = v.RCID
	if v.PodID != "" {
		set[pod.PodIDLabel] = v.PodID
	}
	return set
}
