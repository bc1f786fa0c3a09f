package farm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/rcfarm/rcfarm/integration/simnode"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/farm"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A program that owns one controller, under its own session, until its two pods are placed. The Log is nil, so nothing
// is logged: WatchDesires calls its function with the error of each failed look.
func ExampleNew() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	server, err := consultest.Start("")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Stop()
	client, st, err := shop(ctx, server.Addr)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	session := consul.SessionConfig{Kind: "farm", Name: "shop-owner", TTL: 5 * time.Second, Journal: &simnode.Journal{}}
	err = client.RunSession(ctx, session, func(ctx context.Context, s *consul.Session) error {
		owner, err := farm.New(farm.Config{ID: "shop-owner", RCID: "shop", Store: st.FarmSession(s, "shop-owner")})
		if err != nil {
			return err
		}
		go func() {
			defer stop()
			for _, p := range untilPlaced(ctx, owner, 2) {
				fmt.Println(p.Identity, "is on", p.Node)
			}
		}()
		return owner.WatchDesires(ctx,
			func(err error) { log.Println("a look at shop failed, and is made again:", err) })
	})
	fmt.Println("ended:", errors.Is(err, context.Canceled))
	// Output:
	// shop/main.0 is on n1
	// shop/main.1 is on n1
	// ended: true
}

// untilPlaced takes what New returns, or a fake in a test.
func untilPlaced(ctx context.Context, owner farm.ReplicationController, n int) (pods []pod.Placement) {
	_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		pods, _ = owner.CurrentPods(ctx)
		return len(pods) == n, nil
	})
	return pods
}

// shop writes a controller with two pods, and runs a node for them until ctx ends.
func shop(ctx context.Context, addr string) (*consul.Client, *store.Store, error) {
	client, err := consul.New(consul.Config{Address: addr})
	if err != nil {
		return nil, nil, err
	}
	keys, err := store.NewKeys(store.DefaultPrefix)
	if err != nil {
		return nil, nil, err
	}
	st := store.New(client, keys)
	if _, err := st.EnsureSchema(ctx); err != nil {
		return nil, nil, err
	}
	n1 := &simnode.Node{
		Record: node.Node{Name: "n1", Capacity: node.Capacity{Slots: 10}, Address: "127.0.0.1"}, TTL: 5 * time.Second,
		Client: client, Store: st,
	}
	go func() { _ = n1.Run(ctx) }()
	m := manifest.Manifest{
		Version: 1, ID: "shop",
		Launchables: []manifest.Launchable{{
			Name:     "main",
			Artifact: manifest.Artifact{Kind: manifest.ArtifactExec, Path: "/bin/true"},
		}},
	}
	canonical, err := m.Canonical()
	if err != nil {
		return nil, nil, err
	}
	two, digest := 2, manifest.Digest(canonical)
	r := rc.RC{
		ID: "shop", Name: "shop", Generation: 1, Strategy: rc.Dynamic, ManifestDigest: digest,
		ReplicaGroups: []rc.ReplicaGroup{{Role: "main", Count: &two}},
	}
	return client, st, st.Operator.ChangeRC(ctx, store.RCChange{
		RC: r, Manifests: []store.DeployManifest{{Digest: digest, Canonical: canonical}},
		Audit: store.NewAudit("ann", "create", r.ID, nil),
	})
}
