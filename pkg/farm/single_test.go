package farm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	kube "k8s.io/apimachinery/pkg/labels"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/labels"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// single owns one controller.
func (c *cluster) single(id, rcID string) (owner farm.ReplicationController, stop func()) {
	return c.singleWith(id, rcID, &faulty{}, nil)
}

// singleWith is single with faults, and with a function for the errors of failed looks.
func (c *cluster) singleWith(id, rcID string, faults *faulty, failed func(error)) (owner farm.ReplicationController,
	stop func(),
) {
	log, err := obs.NewLogger(testWriter{c.t}, "info", "text")
	if err != nil {
		c.t.Fatal(err)
	}
	client, st := c.connect()
	started := make(chan farm.ReplicationController, 1)
	cfg := c.session("farm", id)
	stop = c.background(func(ctx context.Context) error {
		return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
			faults.Session = st.FarmSession(s, id)
			owner, err := farm.New(farm.Config{
				ID: id, RCID: rcID, Store: faults, Log: log,
				TTL: 500 * time.Millisecond, SweepEvery: time.Second,
			})
			if err != nil {
				return err
			}
			started <- owner
			return owner.WatchDesires(ctx, failed)
		})
	})
	return <-started, stop
}

// ownedBy waits until a farm owns a controller.
func (c *cluster) ownedBy(rcID, farmID string) {
	c.t.Helper()
	consultest.Eventually(c.t, soon, func() error {
		owners, err := c.store.LockOwners(c.t.Context())
		if err != nil || owners[rcID] != farmID {
			return fmt.Errorf("the owners are %v, %w", owners, err)
		}
		return nil
	})
}

func nodesOfPods(pods []pod.Placement) map[pod.Identity][]string {
	on := map[pod.Identity][]string{}
	for _, p := range pods {
		on[p.Identity] = append(on[p.Identity], p.Node)
	}
	return on
}

// A program may own one controller by itself. Then no farm owns the controller, and the program changes no other
// controller. When the program ends, a farm goes on.
func TestTheOwnerOfOneController(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	c.node("n2", nil, nil)
	owner, stop := c.single("mine", "web")
	c.apply("web", testManifest("web", 0), replicas(2))
	c.converged("web", 2)
	c.apply("other", testManifest("other", 0), replicas(1))
	c.farm("f1")
	c.converged("other", 1)
	c.ownedBy("other", "f1")
	c.ownedBy("web", "mine")
	c.apply("web", testManifest("web", 0), replicas(3))
	c.converged("web", 3)
	for name, current := range map[string]func() ([]pod.Placement, error){
		"its own": func() ([]pod.Placement, error) { return owner.CurrentPods(t.Context()) },
		"by label": func() ([]pod.Placement, error) {
			return farm.CurrentPods(t.Context(), "web", labels.New(c.store).Pods())
		},
	} {
		pods, err := current()
		if on := nodesOfPods(pods); err != nil || !maps.EqualFunc(on, c.running("web"), slices.Equal[[]string]) {
			t.Errorf("%s: the pods are on %v, %v; they run on %v", name, on, err, c.running("web"))
		}
	}
	before := c.running("web")
	stop()
	c.ownedBy("web", "f1")
	c.apply("web", testManifest("web", 0), func(r *rc.RC) { r.Labels = map[string]string{"seen": "by-f1"} })
	c.converged("web", 3)
	if now := c.running("web"); !maps.EqualFunc(now, before, slices.Equal[[]string]) {
		t.Errorf("they ran on %v, now on %v", before, now)
	}
}

// A farm hands a controller over to a program that works on that controller alone.
func TestAFarmHandsOverToTheOwnerOfOneController(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node("n1", nil, nil)
	client, st := c.connect()
	log, err := obs.NewLogger(testWriter{t}, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	c.background(func(ctx context.Context) error {
		cfg := c.session("farm", "f1")
		return client.RunSession(ctx, cfg, func(ctx context.Context, s *consul.Session) error {
			return farm.NewFarm(farm.Config{
				ID: "f1", Store: st.FarmSession(s, "f1"), Log: log, TTL: 500 * time.Millisecond,
				SweepEvery: time.Second, StableAfter: 200 * time.Millisecond,
			}).Start(ctx)
		})
	})
	c.apply("web", testManifest("web", 0), replicas(1))
	c.converged("web", 1)
	c.ownedBy("web", "f1")
	_, stop := c.single("mine", "web")
	c.ownedBy("web", "mine")
	c.apply("web", testManifest("web", 0), replicas(0))
	c.converged("web", 0)
	stop()
}

// The program gets the error of each failed look. The owner does not wait for the program, and does not end, even if
// the program blocks or panics.
func TestErrorsOfLooksReachTheProgram(t *testing.T) {
	t.Parallel()
	broken := errors.New("it cannot be read")
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	var owner atomic.Pointer[farm.ReplicationController]
	for name, does := range map[string]func(ctx context.Context){
		"returns": func(context.Context) {},
		"panics":  func(context.Context) { panic("what now?") },
		"blocks":  func(context.Context) { <-forever },
		"ends":    func(context.Context) { runtime.Goexit() },
		"asks": func(ctx context.Context) {
			if o := owner.Load(); o != nil {
				_, _ = (*o).CurrentPods(ctx)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.node("n1", nil, nil)
			var ill atomic.Bool
			ill.Store(true)
			failures := make(chan error, 1)
			faults := &faulty{readHead: func(string) error {
				if ill.Load() {
					return broken
				}
				return nil
			}}
			one, stop := c.singleWith("mine", "web", faults, func(err error) {
				select {
				case failures <- err:
				default:
				}
				does(t.Context())
			})
			if name == "asks" {
				owner.Store(&one)
			}
			c.apply("web", testManifest("web", 0), replicas(2))
			if err := <-failures; !errors.Is(err, broken) {
				t.Errorf("the program got %v", err)
			}
			ill.Store(false)
			c.converged("web", 2)
			stop() // also while the program has not returned
			if one.ID() != "web" {
				t.Errorf("the owner is of controller %q", one.ID())
			}
		})
	}
}

func TestNewNeedsAController(t *testing.T) {
	t.Parallel()
	if _, err := farm.New(farm.Config{ID: "mine"}); err == nil {
		t.Error("no error without a controller")
	}
}

// The error names a required setting that the program has left out. The log is not required.
func TestAMissingSettingIsAnError(t *testing.T) {
	t.Parallel()
	st := &faulty{join: func() error { return errors.New("cannot join") }}
	for name, tt := range map[string]struct {
		cfg  farm.Config
		says string
	}{
		"no log":   {farm.Config{ID: "f1", Store: st}, "join: cannot join"},
		"no id":    {farm.Config{Store: st}, "farm: Config.ID is required"},
		"no store": {farm.Config{ID: "f1"}, "farm: Config.Store is required"},
	} {
		if err := farm.NewFarm(tt.cfg).Start(t.Context()); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", name, err, tt.says)
		}
		cfg := tt.cfg
		cfg.RCID = "web"
		owner, err := farm.New(cfg)
		if err == nil {
			err = owner.WatchDesires(t.Context(), nil)
		}
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s, of one controller: %v, want %q", name, err, tt.says)
		}
	}
}

// matcher returns what a test has set.
type matcher []labels.Labeled

func (m matcher) GetMatches(context.Context, kube.Selector) ([]labels.Labeled, error) {
	return m, errors.New("one cannot be read")
}

func TestCurrentPodsReportsUnreadablePods(t *testing.T) {
	t.Parallel()
	pods, err := farm.CurrentPods(t.Context(), "web", matcher{{ID: "n1"}, {Pod: &pod.Placement{Node: "n1"}}})
	if err == nil || len(pods) != 1 || pods[0].Node != "n1" {
		t.Errorf("%v, %v", pods, err)
	}
	if _, err := farm.CurrentPods(t.Context(), "no label!", matcher{}); err == nil {
		t.Error("an id is accepted that cannot be a label value")
	}
}

// placed is a matcher that needs no Consul. Other programs may use such a matcher in their tests.
type placed []pod.Placement

func (p placed) GetMatches(_ context.Context, selector kube.Selector) (matches []labels.Labeled, err error) {
	for i := range p {
		if set := labels.OfPod(p[i].RCID, p[i].PodID, p[i].Labels); selector.Matches(set) {
			matches = append(matches, labels.Labeled{
				ID: p[i].Identity.String(), Labels: set, Node: p[i].Node,
				Pod: &p[i],
			})
		}
	}
	return matches, nil
}

// The nodes of a controller's pods. With a store the matcher is labels.New(store).Pods().
func ExampleCurrentPods() {
	m := placed{
		{Identity: pod.Identity{RCID: "web-id", Role: "main", Index: 0}, Node: "n1"},
		{Identity: pod.Identity{RCID: "web-id", Role: "main", Index: 1}, Node: "n7"},
		{Identity: pod.Identity{RCID: "db-id", Role: "main", Index: 0}, Node: "n1"},
	}
	pods, err := farm.CurrentPods(context.Background(), "web-id", m)
	for _, p := range pods {
		fmt.Println(p.Identity, "is on", p.Node)
	}
	fmt.Println(err)
	// Output:
	// web-id/main.0 is on n1
	// web-id/main.1 is on n7
	// <nil>
}
