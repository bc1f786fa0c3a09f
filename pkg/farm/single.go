package farm

import (
	"context"
	"errors"
	"fmt"

	kube "k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// New returns the owner of one controller, cfg.RCID, for programs that look after it by themselves. It is a farm with that controller alone:
// it has the same watches and fences, writes in no other way, and is a member that all farms leave the controller to. Its ID must be
// none of theirs. Like a Farm it serves one session, which cfg.Store is under.
func New(cfg Config) (*ReplicationController, error) {
	if cfg.RCID == "" {
		return nil, errors.New("the owner of one controller needs the controller's id")
	}
	if cfg.Workers == 0 {
		cfg.Workers = 1
	}
	f := NewFarm(cfg)
	return &ReplicationController{ID: cfg.RCID, kit: f.kit, log: f.log.WithField(obs.RCID, cfg.RCID), watch: f.Start}, nil
}

// WatchDesires owns the controller and brings its pods in line with what is desired whenever that changes, until ctx ends. It waits while another one owns it:
// farms hand it over once the members have been stable for a while. It returns as Farm.Start does; then nothing of it runs any more.
// Whoever ends it leaves the pods as they are, and the controller to the farms whose selectors match it.
func (c *ReplicationController) WatchDesires(ctx context.Context) error { return c.watch(ctx) }

// CurrentPods returns the controller's placements as Consul has them now, those that stop included. Where some cannot be read it returns
// the others, and an error.
func (c *ReplicationController) CurrentPods(ctx context.Context) ([]pod.Placement, error) {
	recs, corrupt, err := c.kit.lists.Placements(ctx, c.ID, true)
	return field.Each(recs, func(rec store.Rec[pod.Placement]) pod.Placement { return rec.Value }), errors.Join(append(corrupt, err)...)
}

// CurrentPods returns the placements of a controller that a matcher of pods finds, such as labels.New(store).Pods(); it reads no others. Where some cannot be
// read it returns the others, and an error.
func CurrentPods(ctx context.Context, rcID string, m labels.LabelMatcher) ([]pod.Placement, error) {
	selector, err := kube.ValidatedSelectorFromSet(kube.Set{pod.RCIDLabel: rcID})
	if err != nil {
		return nil, fmt.Errorf("controller %q: %w", rcID, err)
	}
	matches, err := m.GetMatches(ctx, selector)
	var pods []pod.Placement
	for i := range matches {
		if matches[i].Pod != nil {
			pods = append(pods, *matches[i].Pod)
		}
	}
	return pods, err
}
