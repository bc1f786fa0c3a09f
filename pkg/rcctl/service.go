package rcctl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy"
	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rollout"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const servicesAllowed = "one or more YAML or JSON documents that each describe a service"

// planFlags are those of the commands that plan.
func planFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "recreate", Usage: "make a new revision even where the document is the same"},
		&cli.StringFlag{Name: "strategy", Usage: "`STRATEGY` of this rollout in place of the document's: availability, resourceutil, in-place, canary or blue-green"},
		&cli.BoolFlag{Name: "skip-gates", Usage: "ask no gate"},
		&cli.BoolFlag{Name: "keep-counts", Usage: "keep the present number of replicas, whatever the document says: something else scales the service"},
	}
}

// readServices reads, converts and validates the documents that -f names. Its errors are *usageError and *inputError.
func readServices(c *cli.Context) ([]*record.ServiceSpec, error) {
	return readInput(c, func(_ string, data []byte) ([]*record.ServiceSpec, error) {
		docs, err := document.AllToJSON(data, servicesAllowed)
		if err != nil {
			return nil, err
		}
		return decodeServices(docs)
	})
}

// decodeServices decodes and validates the documents of a file that each describe a service.
func decodeServices(docs [][]byte) (specs []*record.ServiceSpec, err error) {
	var errs field.Errors
	seen := map[string]bool{}
	for i, doc := range docs {
		path := ""
		if len(docs) > 1 {
			path = fmt.Sprintf("document %d", i+1)
		}
		spec, err := record.Decode(doc)
		var bad field.Errors
		switch {
		case errors.As(err, &bad):
			errs.Nest(path, bad)
			continue
		case err != nil:
			return nil, err
		case spec.Name != "" && seen[spec.Name]:
			errs.Nest(path, field.Errors{{Field: "name", Value: spec.Name, Allowed: "a name that no other document of the file has"}})
		}
		seen[spec.Name] = true
		specs = append(specs, spec)
	}
	return specs, errs.Err()
}

// deployer plans and runs deployments of one command.
type deployer struct {
	conn    *conn
	client  *deploy.Client
	options plan.Options
	rolling plan.RollingStrategy
	known   func(context.Context) (map[string]string, error) // the digests that the histories of all services have
	about   string                                           // printed before the plan, if anything
}

// optionsOf reads the flags that shape a plan besides its document.
func optionsOf(c *cli.Context) plan.Options {
	return plan.Options{
		Strategy: c.String("strategy"), Recreate: c.Bool("recreate"), SkipGates: c.Bool("skip-gates"), AllowMassStop: c.Bool("allow-mass-stop"),
	}
}

// newDeployer reads what plans need to see of the cluster. Unreadable records are told on standard error.
func newDeployer(s *conn, options plan.Options) (*deployer, error) {
	if strategy := options.Strategy; strategy != "" && !slices.Contains(rollout.StrategyNames(), strategy) {
		return nil, badFlag(s.flags, "--strategy", strategy, field.Or(rollout.StrategyNames()...))
	}
	who, err := s.who(s.Context)
	if err != nil {
		return nil, err
	}
	state, corrupt, err := deploy.State(s.Context, s.Store)
	if err != nil {
		return nil, err
	}
	if err := s.warn(corrupt); err != nil {
		fmt.Fprintln(s.err, "rcctl: the plan is made without what cannot be read")
	}
	return &deployer{
		known: knownDigests(s),
		conn:  s, client: &deploy.Client{Store: s.Store, Who: who, Signatures: map[string]string{}},
		options: options, rolling: options.Rolling(state, who),
	}, nil
}

// knownDigests looks digests up in the histories of all services, which it reads once. Entries that cannot be read are
// told on standard error and skipped.
func knownDigests(s *conn) func(context.Context) (map[string]string, error) {
	var known map[string]string
	return func(ctx context.Context) (map[string]string, error) {
		if known != nil {
			return known, nil
		}
		recs, corrupt, err := s.Deployments.Histories(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the histories of all services: %w", err)
		}
		if err := s.warn(corrupt); err != nil {
			fmt.Fprintln(s.err, "rcctl: digests are looked up without what cannot be read")
		}
		known = record.KnownDigests(field.Each(recs, func(rec store.Rec[record.Entry]) record.Entry { return rec.Value }))
		return known, nil
	}
}

// planned is a deployment with its plan.
type planned struct {
	deployment *plan.Deployment
	plan       plan.Plan
	domain     *plan.Domain // that the document depends on; nil: on none
}

// plan plans the deployment of a document as people wrote it: where it names no host, the cluster's domain does.
func (d *deployer) plan(ctx context.Context, spec *record.ServiceSpec) (*planned, error) {
	if spec.Name != "" && d.conn.Bool("keep-counts") {
		svc, err := d.client.Service(ctx, spec.Name)
		if err != nil {
			return nil, fmt.Errorf("read service %s: %w", spec.Name, err)
		}
		if svc != nil {
			effect := svc.InEffect()
			spec = spec.WithCounts(effect.Spec.Groups())
		}
	}
	if spec.Host() != "" {
		return d.planOf(ctx, spec, nil)
	}
	domain, err := d.conn.ofDomain(ctx)
	if err != nil {
		return nil, err
	}
	return d.planOf(ctx, spec, domain)
}

// planOf resolves a document and plans its deployment. It gets its host name of the domain; nil: its host name stays.
func (d *deployer) planOf(ctx context.Context, spec *record.ServiceSpec, domain *plan.Domain) (*planned, error) {
	resolver := plan.ServiceSpecResolver{Digests: &plan.DigestResolver{Source: &deploy.TarSource{}, Known: d.known}}
	if domain != nil {
		resolver.Domain = domain.Name
	}
	resolved, err := resolver.Resolve(ctx, spec)
	if err != nil {
		return nil, refusedPlan(err)
	}
	strategy := d.rolling
	strategy.Domain = domain
	p, err := d.planResolved(ctx, resolved, &strategy)
	if p != nil {
		p.domain = domain
	}
	return p, refusedPlan(err)
}

// planResolved plans the deployment of a resolved document, and signs its manifests where a flag says so.
func (d *deployer) planResolved(ctx context.Context, resolved *record.ServiceSpec, strategy plan.Strategy) (*planned, error) {
	if key := d.conn.String("sign-key"); key != "" {
		signatures, err := signAll(d.conn.flags, manifestsOf(resolved.RCSpec(resolved.Name)), key)
		if err != nil {
			return nil, err
		}
		maps.Copy(d.client.Signatures, signatures)
	}
	deployment := plan.NewDeployment(d.client, *resolved, strategy)
	deployment.Detach = true // the display waits
	p, err := deployment.Plan(ctx)
	if err != nil {
		return nil, err
	}
	return &planned{deployment: deployment, plan: p}, nil
}

// redeploy plans and carries out another document of a service that is there: the one that change makes of what is known of it.
func redeploy(s *conn, name, what string, change func(*record.Service, *deployer) (*record.ServiceSpec, error)) error {
	svc, err := s.service(s.Context, name)
	if err != nil {
		return err
	}
	d, err := newDeployer(s, optionsOf(s.flags))
	if err != nil {
		return err
	}
	d.client.What = what
	spec, err := change(svc, d)
	if err != nil {
		return err
	}
	p, err := d.planOf(s.Context, spec, nil) // the domain is for documents as people wrote them
	if err != nil {
		return err
	}
	if d.about != "" {
		fmt.Fprintln(s.out, d.about)
	}
	return carryOut(s, []*planned{p})
}

// planAll plans the deployment of each document.
func planAll(s *conn, specs []*record.ServiceSpec) (d *deployer, all []*planned, err error) {
	if d, err = newDeployer(s, optionsOf(s.flags)); err != nil {
		return nil, nil, err
	}
	for _, spec := range specs {
		p, err := d.plan(s.Context, spec)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, p)
	}
	return d, all, nil
}

// refusedPlan turns what plans refuse into what exits as refused.
func refusedPlan(err error) error {
	var refused *plan.RefusedError
	var stale *plan.StaleError
	var unknown *plan.UnknownDigestError
	switch {
	case errors.As(err, &unknown):
		return refusedf("%v; nothing was written", unknown)
	case errors.As(err, &refused):
		return refusedf("%v", refused)
	case errors.As(err, &stale):
		text := stale.Error() + "; nothing was written"
		for _, line := range stale.Changes {
			text += "\n  " + clean(forTerminal(line)) // a saved plan says what it likes
		}
		return refusedf("%s", text)
	case changedDomain(err):
		return refusedf("the cluster's domain changed since the plan was made; nothing was written, plan again")
	case errors.Is(err, plan.ErrChanged):
		return refusedf("%v; nothing was written, plan again", err)
	default:
		return err
	}
}

// service reads a service that must be there.
func (s *conn) service(ctx context.Context, name string) (*record.Service, error) {
	svc, err := s.Deployments.Service(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFoundf("no service has the name %q; rcctl service list shows all", name)
	}
	return svc, err
}

func serviceListCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "list", Aliases: []string{"ls"}, Usage: "list the services that were deployed",
		UsageText: "rcctl service list [-o table|json|yaml]",
		Description: `Examples:
  rcctl service list
  rcctl service list -o json | jq -r '.[].service'`,
		Flags:  []cli.Flag{outputFlag()},
		Action: onList(runServiceList),
	})
}

func runServiceList(s *conn) error {
	names, err := s.Deployments.ListServices(s.Context)
	if err != nil {
		return err
	}
	views, corrupt := []inspect.ServiceView{}, []error{}
	for _, name := range names {
		svc, err := s.Deployments.Service(s.Context, name)
		switch {
		case errors.Is(err, store.ErrNotFound): // deleted meanwhile
		case isCorrupt(err):
			corrupt = append(corrupt, err)
		case err != nil:
			return err
		default:
			views = append(views, inspect.NewServiceView(svc))
		}
	}
	tb := table{header: []string{"SERVICE", "REVISION", "AVAILABLE", "ROLLOUT", "BY", "AGE"}, paint: 3, colourOf: rolloutColour}
	return printList(s, views, corrupt, "no services; deploy one: rcctl deploy -f web.yaml", tb, func(v *inspect.ServiceView) []string {
		return []string{v.Service, fmt.Sprint(v.Revision), fmt.Sprintf("%d/%d", v.Available, v.Replicas), string(v.Rollout), v.By, inspect.Age(time.Now(), v.At)}
	})
}

func serviceDeleteCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "delete", Usage: "delete a service: its document and history, and its revisions by mark",
		UsageText: "rcctl service delete SERVICE [--force] [--allow-mass-stop]",
		Description: `A service whose document asks for replicas is refused (exit code 4) unless --force is given, and so is one with a rollout under way. The farms
stop the pods, wait until their nodes have confirmed that, then remove every record.

Examples:
  rcctl scale web 0 --yes && rcctl service delete web
  rcctl service delete web --force`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "force", Usage: "delete even though replicas are asked for"}, massStopFlag()},
		Action: onConn(serviceName.only, runServiceDelete),
	})
}

func runServiceDelete(s *conn, name string) (err error) {
	var svc *record.Service
	err = s.writing(s.Context, maxTries, func(ctx context.Context, by string) error {
		if svc, err = s.service(ctx, name); err != nil {
			return err
		}
		if svc.Rollout != nil {
			return refusedf("service %s: its rollout is %s; end it first: rcctl rollout abort %s; nothing was written", name, svc.Rollout.State, name)
		}
		if effect := svc.InEffect(); effect.Spec.Total() > 0 && !s.Bool("force") {
			return refusedf("service %s asks for %s; scale it to 0 first (rcctl scale %s 0) or add --force, nothing was written", name, field.Count(effect.Spec.Total(), "replica"), name)
		}
		audit := store.NewAudit(by, "delete-service", svc.Deployed.RC, []string{"service " + name + ": deleted"})
		return s.did("the deletion of service "+name, "rcctl service list", s.Deployments.ForgetService(ctx, svc, s.Bool("allow-mass-stop"), audit))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "service %s is deleted; its farm stops the pods of %d revisions, waits for their nodes to confirm, then removes the records\n", name, len(svc.Controllers))
	for _, one := range svc.Controllers {
		fmt.Fprintf(s.out, "watch: rcctl pods --rc %s\n", one.RC.ID)
	}
	return nil
}
