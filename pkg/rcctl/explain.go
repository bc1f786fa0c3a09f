package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func explainCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "explain", Usage: "say in sentences why an rc is not as it should be, and what to do",
		UsageText: "rcctl rc explain REF [-o table|json|yaml]",
		Description: `Puts together what the rc asks for, what its farm reports, where its pods are, what their nodes say, the nodes, the
farms and the mass-stop breaker. What to look at first comes first.

Examples:
  rcctl rc explain web
  rcctl rc explain web -o json | jq -r '.causes[].next'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onRC(runExplain),
	})
}

func runExplain(s *conn, found store.Rec[rc.RC]) error {
	sit, corrupt, err := situationOf(s.Context, s, &found.Value)
	if err != nil {
		return err
	}
	e := inspect.Explain(sit)
	return s.print(e, corrupt, func(w io.Writer) error {
		fmt.Fprintf(w, "rc %s (%s)\n%s\n", e.Name, e.RCID, e.Summary)
		for i, c := range e.Causes {
			fmt.Fprintf(w, "\n%d. %s\n", i+1, clean(c.What))
			if c.Next != "" {
				fmt.Fprintf(w, "   Next: %s\n", clean(c.Next))
			}
		}
		return nil
	})
}

// situationOf reads everything that has to do with a controller. Records that cannot be read are left out and returned.
func situationOf(ctx context.Context, s *conn, r *rc.RC) (_ *inspect.Situation, corrupt []error, err error) {
	o, err := s.observe(ctx, r.ID)
	if err != nil {
		return nil, nil, err
	}
	sit := &inspect.Situation{Now: time.Now(), RC: *r, Status: o.Status, Farms: o.Farms}
	if sit.Manifest, _, err = readable(s.SignedManifest(ctx, r.ManifestDigest)); err != nil {
		return nil, nil, err
	}
	sit.Groups = map[string]*manifest.Manifest{}
	for _, digest := range r.Digests().All()[1:] {
		m, _, err := readable(s.SignedManifest(ctx, digest))
		if err != nil {
			return nil, nil, err
		}
		if m != nil {
			sit.Groups[digest] = m
		}
	}
	pods, unread, err := s.podsOf(ctx, r.ID)
	if err != nil {
		return nil, nil, err
	}
	sit.Pods = *pods
	switch rolls, err := s.Deployments.RolloutFor(ctx, r); {
	case isCorrupt(err):
		corrupt = append(corrupt, err)
	case err != nil:
		return nil, nil, err
	case rolls != nil:
		sit.Rollout = rolls.Term()
	}
	state, bad, err := deploy.State(ctx, s.Store)
	if err != nil {
		return nil, nil, err
	}
	sit.Epoch, sit.Nodes, sit.Taken = state.Epoch, state.Nodes, state.Taken
	owners, err := s.LockOwners(ctx)
	if err != nil {
		return nil, nil, err
	}
	sit.Owner = owners[rc.UnitOf(r.ID)]
	breaker, err := s.Breaker.Get(ctx, store.Consistent)
	switch {
	case err == nil:
		sit.Breaker = &breaker.Value
	case !errors.Is(err, store.ErrNotFound) && !isCorrupt(err):
		return nil, nil, err
	}
	return sit, slices.Concat(corrupt, unread, bad), nil
}

// podsOf reads the placements of a controller, what the nodes where they are report, and what is known of these nodes.
// Records that cannot be read are left out and returned. With an error there is what was read before it.
func (s *conn) podsOf(ctx context.Context, id string) (pods *inspect.Pods, corrupt []error, err error) {
	pods = &inspect.Pods{}
	recs, corrupt, err := s.Pods.List(ctx, store.Default, id)
	if err != nil {
		return pods, nil, err
	}
	pods.Placements = values(recs)
	at := field.Each(pods.Placements, func(p pod.Placement) store.At { return store.At{Identity: p.Identity, Node: p.Node} })
	reports, bad, err := s.RealitiesAt(ctx, at, false)
	if err != nil {
		return pods, corrupt, err
	}
	pods.Realities, corrupt = reports, append(corrupt, bad...)
	nodes, _, err := s.Nodes.List(ctx, store.Default)
	if err != nil {
		return pods, corrupt, err
	}
	pods.Losses, _, err = s.losses(ctx, nodes)
	return pods, corrupt, err
}
