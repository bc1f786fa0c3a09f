package rcctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const podAllowed = "a pod's name as rcctl pods shows it, such as web-main-0, or RC/ROLE.INDEX, such as web/main.0, or a unique beginning of one"

// podFlags choose where several pods bear one name.
func podFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "rc", Usage: "only pods of this `REF`"},
		&cli.StringFlag{Name: "node", Usage: "only the copy on this `NODE`"},
	}
}

// checkPod returns an argument that names a pod.
func checkPod(c *cli.Context, ref string) (string, error) {
	return checkPodName(c, ref, "-./", podAllowed)
}

// checkPodName returns the name of a pod, in which marks may stand besides letters and digits.
func checkPodName(c *cli.Context, name, marks, allowed string) (string, error) {
	bad := strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune(marks, r) && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
	if name == "" || bad {
		return "", badFlag(c, "POD", name, allowed)
	}
	return name, checkPodFlags(c)
}

// onePod returns the only argument of a command, which names a pod.
func onePod(c *cli.Context) (string, error) { return onlyArg(c, "POD", checkPod) }

// findPod finds the copy of a pod that the command line means. It returns notFoundf, or a *usageError that lists the
// candidates.
func (s *conn) findPod(c *cli.Context, ref string) (inspect.PodView, error) {
	views, bad, err := s.podViews(c)
	if err != nil {
		return inspect.PodView{}, err
	}
	found := inspect.PodsNamed(views, ref)
	switch len(found) {
	case 0:
		if err := errors.Join(bad...); err != nil {
			return inspect.PodView{}, fmt.Errorf("pod %q is not among those that can be read: %w", ref, err)
		}
		return inspect.PodView{}, notFoundf("no pod has the name %q there; rcctl pods shows all", ref)
	case 1:
		return found[0], nil
	}
	return inspect.PodView{}, ambiguousPod(c, ref, found, func(v *inspect.PodView) string {
		return fmt.Sprintf("%s  %s on %s", v.SlashName(), v.Name, v.Node)
	})
}

// ambiguousPod is the name of more than one pod.
func ambiguousPod[V any](c *cli.Context, ref string, found []V, line func(*V) string) error {
	return asUsage(c, ambiguous("POD", ref, "what means one copy only, with --node or --rc; this means:", found, line))
}

// placements reads those of one controller, or of all where none is named.
func (s *conn) placements(ctx context.Context, rcID string, level store.Level) (recs []store.Rec[pod.Placement], corrupt []error, err error) {
	if rcID == "" {
		return s.Pods.List(ctx, store.Default)
	}
	return s.Pods.List(ctx, level, rcID)
}

// podViews joins what --rc, --node and --selector choose; the selector is one of pods. A command whose -l selects something else
// reads AllPlacements, AllRealities and allNames itself.
func (s *conn) podViews(c *cli.Context) (views []inspect.PodView, bad []error, err error) {
	names, rcID, bad, err := s.rcNames(c)
	if err != nil {
		return nil, nil, err
	}
	placements, badPlacements, err := s.placements(c.Context, rcID, store.Default)
	if err != nil {
		return nil, nil, err
	}
	realities, badRealities, err := s.Realities.List(c.Context, store.Default)
	if err != nil {
		return nil, nil, err
	}
	views = inspect.FilterPods(inspect.JoinPods(values(placements), values(realities), names), rcID, c.String("node"))
	views = inspect.Selected(views, selectorOf(c), (*inspect.PodView).LabelSet)
	inspect.MarkUnreadable(views, badRealities, s.Keys())
	return views, slices.Concat(bad, badPlacements, badRealities), nil
}
