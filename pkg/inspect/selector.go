package inspect

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	ourlabels "github.com/rcfarm/rcfarm/pkg/labels"
)

// Selected keeps what a selector selects.
func Selected[V any](views []V, sel labels.Selector, labelsOf func(*V) map[string]string) []V {
	return slices.DeleteFunc(views, func(v V) bool { return !sel.Matches(labels.Set(labelsOf(&v))) })
}

// LabelSet is what selectors look at: the labels that the farm gave the pod, and those that every pod has. Of an orphan, which nobody has
// placed, there is only the controller.
func (v *PodView) LabelSet() map[string]string {
	return ourlabels.OfPod(v.RCID, v.PodID, v.Labels)
}
