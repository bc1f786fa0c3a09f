package rcctl

import (
	"cmp"
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

func planFlags() []cli.Flag {
	return slices.Concat(
		toggle("recreate", "make a new revision even if the document is the same"),
		option("strategy",
			"`STRATEGY` of this rollout in place of the document's: "+field.Or(rollout.StrategyNames()...)),
		toggle("skip-gates", "ask no gate"),
		toggle("keep-counts",
			"keep the present number of replicas, not the document's, because another program scales the service"),
		option("registry-config", "`FILE` with credentials of registries: a config.json of Docker, which may name "+
			"credential helpers (default: the one of docker login)"),
		option("registry-ca", "`FILE` with certificates of registries in PEM, accepted beside the machine's"),
		[]cli.Flag{&cli.StringSliceFlag{Name: "registry-plain-http", Usage: "`REGISTRY` without TLS; may be repeated"}},
	)
}

func readServices(c *cli.Context) ([]*record.ServiceSpec, error) {
	return readInput(c, func(_ string, data []byte) ([]*record.ServiceSpec, error) {
		docs, err := document.AllToJSON(data, servicesAllowed)
		if err != nil {
			return nil, err
		}
		return decodeServices(docs)
	})
}

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
			const allowed = "a name that no other document of the file has"
			errs.Nest(path, field.Errors{{Field: "name", Value: spec.Name, Allowed: allowed}})
		}
		seen[spec.Name] = true
		specs = append(specs, spec)
	}
	return specs, errs.Err()
}

type deployer struct {
	conn    *conn
	client  *deploy.Client
	options plan.Options
	planner plan.ServicePlanner
	// the digests in the histories of all services
	known func(context.Context) (map[string]string, error)
	about string // printed before the plan; may be empty
}

func optionsOf(c *cli.Context) plan.Options {
	return plan.Options{
		Strategy: c.String("strategy"), Recreate: c.Bool("recreate"), SkipGates: c.Bool("skip-gates"),
		AllowMassStop: c.Bool("allow-mass-stop"),
	}
}

func registriesOf(c *cli.Context) deploy.Registries {
	return deploy.Registries{
		DockerConfig: cmp.Or(c.String("registry-config"), deploy.DockerConfig()), CAFile: c.String("registry-ca"),
		PlainHTTP: c.StringSlice("registry-plain-http"),
	}
}

// newDeployer prints unreadable records on standard error.
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
		s.note("the plan is made without the unreadable records")
	}
	return &deployer{
		known: knownDigests(s),
		conn:  s, client: &deploy.Client{Store: s.Store, Who: who, Signatures: map[string]string{}},
		options: options, planner: options.Planner(state, who),
	}, nil
}

// knownDigests returns a function that reads the histories of all services once. It prints unreadable entries and skips
// them.
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
			s.note("digests are looked up without the unreadable records")
		}
		known = record.KnownDigests(field.Each(recs, func(rec store.Rec[record.Entry]) record.Entry {
			return rec.Value
		}))
		return known, nil
	}
}

type planned struct {
	deployment *plan.Deployment
	plan       plan.Plan
	domain     *plan.Domain // on which the document depends; nil: on none
}

// plan is for a document that people wrote. If it names no host, the service gets one in the cluster's domain.
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

// planOf uses the document's host name as it is if domain is nil.
func (d *deployer) planOf(ctx context.Context, spec *record.ServiceSpec, domain *plan.Domain) (*planned, error) {
	source := &deploy.Source{Registries: registriesOf(d.conn.flags)}
	resolver := plan.ServiceSpecResolver{Digests: &plan.DigestResolver{Source: source, Known: d.known}}
	if domain != nil {
		resolver.Domain = domain.Name
	}
	resolved, err := resolver.Resolve(ctx, spec)
	if err != nil {
		return nil, refusedPlan(err)
	}
	planner := d.planner
	planner.Domain = domain
	p, err := d.planResolved(ctx, resolved, &planner)
	if p != nil {
		p.domain = domain
	}
	return p, refusedPlan(err)
}

func (d *deployer) planResolved(ctx context.Context, resolved *record.ServiceSpec,
	planner plan.Planner,
) (*planned, error) {
	if key := d.conn.String("sign-key"); key != "" {
		signatures, err := signAll(d.conn.flags, manifestsOf(resolved.RCSpec(resolved.Name)), key)
		if err != nil {
			return nil, err
		}
		maps.Copy(d.client.Signatures, signatures)
	}
	deployment := plan.NewDeployment(d.client, *resolved, planner)
	deployment.Detach = true // the display waits, not Run
	p, err := deployment.Plan(ctx)
	if err != nil {
		return nil, err
	}
	beside, err := d.conn.besideRC(ctx, p.ServiceName)
	if err != nil {
		return nil, err
	}
	if beside {
		p.Warnings = append(p.Warnings, fmt.Sprintf("there is also an rc with the name %s, which belongs to no "+
			"service and has pods of its own; to remove it: rcctl rc delete %s --force", p.ServiceName, p.ServiceName))
	}
	return &planned{deployment: deployment, plan: p}, nil
}

// besideRC reports whether a controller of no service has the name, and is not being deleted.
func (s *conn) besideRC(ctx context.Context, name string) (bool, error) {
	id, err := s.RCIDByName(ctx, name)
	if isMissing(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the name %s: %w", name, err)
	}
	r, err := present(s.RCs.Get(ctx, store.Default, id))
	return r != nil && r.Service == nil && r.DeletedAt == nil, err
}

// redeploy deploys the document that change returns.
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
	p, err := d.planOf(s.Context, spec, nil) // only documents that people wrote take the cluster's domain
	if err != nil {
		return err
	}
	if d.about != "" {
		fmt.Fprintln(s.out, d.about)
	}
	return carryOut(s, []*planned{p})
}

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

func refusedPlan(err error) error {
	var refused *plan.RefusedError
	var stale *plan.StaleError
	var unknown *plan.UnknownDigestError
	switch {
	case errors.As(err, &unknown):
		return unwrittenf("%v", unknown)
	case errors.As(err, &refused):
		return refusedf("%v", refused)
	case errors.As(err, &stale):
		text := stale.Error() + "; nothing was written"
		for _, line := range stale.Changes {
			text += "\n  " + clean(forTerminal(line)) // a saved plan may contain any characters
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

func (s *conn) service(ctx context.Context, name string) (*record.Service, error) {
	svc, err := s.Deployments.Service(ctx, name)
	if isMissing(err) {
		return nil, notFoundf("no service has the name %q; rcctl service list shows all", name)
	}
	return svc, err
}

func serviceListCommand() *cli.Command {
	return leaf("list [-o table|json|yaml]", "list the services that were deployed",
		`Examples:
  rcctl service list
  rcctl service list -o json | jq -r '.[].service'`,
		onList(runServiceList), outputFlag(),
	)
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
		case isMissing(err): // deleted meanwhile
		case isCorrupt(err):
			corrupt = append(corrupt, err)
		case err != nil:
			return err
		default:
			views = append(views, inspect.NewServiceView(svc))
		}
	}
	tb := columns("SERVICE", "REVISION", "AVAILABLE", "ROLLOUT", "BY", "AGE").painted(3, rolloutColour)
	err = printList(s, views, corrupt, "no services; deploy one: rcctl deploy -f web.yaml",
		tb, func(v *inspect.ServiceView) []string {
			return []string{
				v.Service, fmt.Sprint(v.Revision), fmt.Sprintf("%d/%d", v.Available, v.Replicas),
				string(v.Rollout), v.By, inspect.Age(time.Now(), v.At),
			}
		})
	return errors.Join(err, noteBreaker(s))
}

func serviceDeleteCommand() *cli.Command {
	return leaf("delete SERVICE [--force] [--allow-mass-stop] [--wait]",
		"delete a service: its document and history; farms delete its revisions",
		`A service with a rollout under way is refused (exit code 4), and, without --force, one whose document asks for
replicas. The farms stop the pods, wait until their nodes have confirmed that, then remove every record.

Examples:
  rcctl scale web 0 --yes && rcctl service delete web
  rcctl service delete web --force --wait`,
		onConn(serviceName.only, runServiceDelete), toggle("force", "delete even though replicas are asked for"),
		massStopFlag(), waitFlags("until the records of all revisions are gone"),
	)
}

func runServiceDelete(s *conn, name string) (err error) {
	var svc *record.Service
	err = s.writing(s.Context, maxTries, func(ctx context.Context, by string) error {
		if svc, err = s.service(ctx, name); err != nil {
			return err
		}
		if svc.Rollout != nil {
			return unwrittenf("service %s: its rollout is %s; end it first: rcctl rollout abort %s",
				name, svc.Rollout.State, name)
		}
		if effect := svc.InEffect(); effect.Spec.Total() > 0 && !s.Bool("force") {
			return refusedf("service %s asks for %s; scale it to 0 first (rcctl scale %s 0) or add --force, nothing "+
				"was written", name, field.Count(effect.Spec.Total(), "replica"), name)
		}
		audit := store.NewAudit(by, "delete-service", svc.Deployed.RC, []string{"service " + name + ": deleted"})
		return s.did("the deletion of service "+name, "rcctl service list",
			s.Deployments.ForgetService(ctx, svc, s.Bool("allow-mass-stop"), audit))
	})
	if err != nil {
		return err
	}
	s.printLine("service %s is deleted; its farm stops the pods of %s, waits for their nodes to confirm, "+
		"then removes the records", name, field.Count(len(svc.Controllers), "revision"))
	if s.Bool("wait") {
		return waitServiceGone(s.Context, s, name, svc.Controllers, limitOf(s.flags))
	}
	for _, one := range svc.Controllers {
		s.printLine("watch: rcctl pods --rc %s", one.RC.ID)
	}
	return nil
}

func waitServiceGone(
	ctx context.Context, s *conn, name string, controllers []record.Controller, limit time.Duration,
) error {
	wait := pending{
		subject: "service " + name, written: "its deletion is written", goal: "gone", hint: "rcctl rc list",
		done: "all revisions of service " + name + " are gone",
	}
	return waitFor(ctx, s.stdio, wait, limit, func(ctx context.Context) (line string, done bool, err error) {
		for _, one := range controllers {
			seen, err := s.observe(ctx, one.RC.ID)
			if err != nil {
				return "", false, err
			}
			if seen.RC != nil {
				return one.RC.Name + ": " + inspect.Progress(*seen.RC, seen), false, nil
			}
		}
		return "", true, nil
	})
}
