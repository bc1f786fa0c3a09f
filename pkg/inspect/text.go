package inspect

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// Short returns the part of a digest that people compare.
func Short(digest string) string { return digest[:min(12, len(digest))] }

const maxNamed = 5

// SomeOf lists the first few names, and how many more there are.
func SomeOf(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}

// Age renders how long ago something was, in one unit.
func Age(now, then time.Time) string {
	d := now.Sub(then)
	switch {
	case then.IsZero():
		return "-"
	case d < time.Second:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// At renders a moment.
func At(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// LabelText renders labels as a=1,b=2.
func LabelText(set map[string]string) string { return labels.Set(set).String() }

// NameOf returns the name of a placed pod.
func NameOf(p *pod.Placement) string { return PodName(p.PodID, p.Identity) }

// PodName is the name of a pod for display.
func PodName(podID string, id pod.Identity) string {
	if podID == "" {
		return fmt.Sprintf("%s-%d", id.Role, id.Index)
	}
	return fmt.Sprintf("%s-%s-%d", podID, id.Role, id.Index)
}
