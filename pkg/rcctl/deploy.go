package rcctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

func deployCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "deploy", Usage: "make services what their documents say, in stages",
		UsageText: "rcctl deploy -f FILE | --plan FILE [--yes] [--detach | --timeout 5m] [--recreate] [--strategy STRATEGY] [--sign-key KEY]",
		Description: `Shows the plan, asks, writes it, and shows how the rollout goes until it ends, or how pods come and go where the plan
needs no rollout. Farms carry it out: Ctrl-C, or --timeout, only ends the display. Nothing is written where one of the
plans is refused, or where something changed since they were made. Exit code 5 says that a rollout failed, was rolled
back or aborted, that pods cannot become available, or that the display ended before it did.

--plan carries a plan out that rcctl plan --out has saved. It is refused (exit code 4) if a document in effect, a controller,
a rollout or the epoch of the cluster has changed since, or if it would do something else than it showed.

Examples:
  rcctl deploy -f web.yaml
  rcctl deploy -f web.yaml --yes --detach      for scripts; then: rcctl rollout status web -w
  rcctl deploy -f web.yaml --recreate          a new revision of the same document
  rcctl deploy -f web.yaml --strategy resourceutil
  rcctl deploy --plan web.plan                 what rcctl plan -f web.yaml --out web.plan has shown

A document, with the fields that are used most; docs/deploying.md has all of them:
  name: web
  replicas: 3
  update: {step: 1, on_timeout: rollback}
  pod:
    version: 1
    id: web
    launchables:
    - name: server
      artifact: {kind: tar, url: "https://files.example/web.tar.gz"}
    ports:
    - {name: http, dynamic: true}
    health:
      http: {port: http, path: /health}`,
		Flags: append(append([]cli.Flag{fileFlag(), savedFlag()}, runFlags()...), append(planFlags(), &cli.StringFlag{Name: "sign-key", Usage: "`FILE` with an SSH key to sign the pods' manifests with"})...),
		Action: func(c *cli.Context) error {
			if c.IsSet("plan") {
				return onConn(readSaved, deploySaved)(c)
			}
			return onConn(readDeploy, runDeploy)(c)
		},
	})
}

func runDeploy(s *conn, specs []*record.ServiceSpec) error {
	_, all, err := planAll(s, specs)
	if err != nil {
		return err
	}
	return carryOut(s, all)
}

// runFlags are those of the commands that start rollouts.
func runFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask; needed where nobody can be asked"},
		&cli.BoolFlag{Name: "detach", Usage: "return when it is written"},
		timeoutFlag("`TIME` after which the display ends, with exit code 5; what was written is carried out all the same"),
		massStopFlag(),
	}
}

func readDeploy(c *cli.Context) ([]*record.ServiceSpec, error) {
	specs, err := readServices(c)
	if err == nil {
		err = mayRun(c)
	}
	return specs, err
}

// mayRun refuses a command that has to ask where nobody can answer, and flags of runFlags that do not go together.
func mayRun(c *cli.Context) error {
	std := stdioOf(c)
	if c.Bool("detach") && c.IsSet("timeout") {
		return badFlag(c, "--timeout", c.String("timeout"), "no time together with --detach, which waits for nothing")
	}
	if !c.Bool("yes") && (!isTerminal(std.in) || !isTerminal(unguarded(std.out)) || c.String("file") == "-") {
		return usagef(c, "--yes: missing; needed where nobody can be asked, since this is no terminal")
	}
	return nil
}

// carryOut shows plans, asks, runs them one after the other and shows how they go.
func carryOut(s *conn, all []*planned) error {
	writePlans(s.out, all, coloured(s.out))
	if !anyChange(all) {
		return nil
	}
	if !s.Bool("yes") {
		if err := confirm(s.Context, s.stdio); err != nil {
			return err
		}
	}
	if err := s.ensureSchema(s.Context); err != nil {
		return err
	}
	for _, p := range all {
		if err := start(s.Context, s, p); err != nil {
			return err
		}
	}
	f := follower{s: s, limit: limitOf(s.flags)}
	f.until = time.Now().Add(f.limit)
	var errs []error
	for _, p := range all {
		switch {
		case p.plan.Empty():
		case s.Bool("detach") || p.plan.Allows():
			fmt.Fprintf(s.out, "next: %s\n", watches(&p.plan))
		default:
			errs = append(errs, f.follow(s.Context, &p.plan))
		}
	}
	return errors.Join(errs...)
}

// watches is the command that goes on with, or shows, what a plan has written.
func watches(p *plan.Plan) string {
	switch changed := p.Changed(); {
	case p.Allows():
		return "rcctl farm resume"
	case p.Rollout() != "":
		return "rcctl rollout status " + p.ServiceName + " -w"
	case len(changed) > 0:
		return "rcctl rc status " + changed[0].Name + " --watch"
	default:
		return "rcctl service list"
	}
}

// follower shows how plans are carried out that were written.
type follower struct {
	s     *conn
	limit time.Duration // from the first plan to the last
	until time.Time
}

// lookLimit is how long the state of a service is asked for that the display reaches when its time is up.
const lookLimit = 5 * time.Second

// follow shows one plan until it is carried out, or cannot be, or the time is up.
func (f *follower) follow(ctx context.Context, p *plan.Plan) error {
	left := max(time.Until(f.until), lookLimit)
	ctx, cancel := context.WithTimeoutCause(ctx, left, fmt.Errorf("not done after %s", f.limit))
	defer cancel()
	if id := p.Rollout(); id != "" {
		return followRollout(ctx, f.s, p.ServiceName, id)
	}
	var errs []error
	for _, r := range p.Changed() {
		errs = append(errs, f.served(ctx, r, left))
	}
	return errors.Join(errs...)
}

// served waits until a controller has as many available pods as it asks for. That another pod cannot leave its node
// does not matter here. What is written stays, whatever ends the wait.
func (f *follower) served(ctx context.Context, want rc.RC, limit time.Duration) error {
	var halt halts
	o, err := waitRC(ctx, f.s, want, limit, "converged", func(o inspect.Observation) (bool, error) {
		done, overtaken := inspect.Served(&want, o)
		switch st := o.Status; {
		case overtaken != "":
			return false, waitEndedf("%s", overtaken)
		case done || st == nil || st.ObservedGeneration != want.Generation:
			return done, nil
		case st.Is(rc.BreakerTripped) && want.AllowMassStop == want.Generation:
			return false, waitEndedf("rc %s: the mass-stop breaker withholds stops until you reset it: rcctl farm resume", want.Name)
		case st.Is(rc.BreakerTripped):
			return false, waitEndedf("rc %s: the mass-stop breaker withholds stops; where they are meant, give the command again "+
				"with --allow-mass-stop, then: rcctl farm resume", want.Name)
		}
		return false, halt.look(ctx, f.s, &want, inspect.Unblocked(o))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(f.s.out, "rc %s: %d of %d replicas available\n", want.Name, o.Status.Available, o.Status.Desired)
	return nil
}

// start writes one plan.
func start(ctx context.Context, s *conn, p *planned) error {
	if p.plan.Empty() {
		return nil
	}
	name := p.plan.ServiceName
	limited, cancel := context.WithTimeoutCause(ctx, writeLimit, errWriteLimit)
	defer cancel()
	done, err := p.deployment.Run(limited)
	if err = s.did("service "+name, "rcctl history "+name, err); err != nil {
		return refusedPlan(err)
	}
	p.plan = done
	if id := done.Rollout(); id != "" {
		fmt.Fprintf(s.out, "service %s: rollout %s started\n", name, id)
	} else {
		fmt.Fprintf(s.out, "service %s: changed\n", name)
	}
	return nil
}

// confirm asks on the terminal. Any answer but yes, and the end of ctx, is an error.
func confirm(ctx context.Context, std *stdio) error {
	fmt.Fprint(std.out, "deploy this? [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(std.in).ReadString('\n') // no line is no
		answer <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(std.out)
		return errors.New("interrupted")
	case line := <-answer:
		if !strings.HasSuffix(line, "\n") { // Ctrl-D
			fmt.Fprintln(std.out)
		}
		if line = strings.ToLower(strings.TrimSpace(line)); line != "y" && line != "yes" {
			return errors.New("not confirmed")
		}
		return nil
	}
}

func planCommand() *cli.Command {
	return leaf(&cli.Command{
		Name: "plan", Usage: "show what deploying a document would do; writes nothing",
		UsageText: "rcctl plan -f FILE [--out FILE] [--recreate] [--strategy STRATEGY] [-o table|json|yaml]",
		Description: `Exit code 0: the services are as the documents say. Exit code 6: there is something to do. What cannot work is refused with exit
code 4, the reason and what would work. --out saves the plan, for somebody else or a later hour to carry out. The file holds
the values of env: it can be read by you alone.

Examples:
  rcctl plan -f web.yaml
  rcctl plan -f web.yaml --out web.plan        then: rcctl deploy --plan web.plan
  rcctl plan -f web.yaml --strategy in-place
  rcctl plan -f web.yaml -o json | jq '.[].change.fields[] | [.path, .from, .to]'`,
		Flags:  append([]cli.Flag{fileFlag(), outFlag(), outputFlag(), massStopFlag()}, planFlags()...),
		Action: onConn(readServices, runPlan),
	})
}

func runPlan(s *conn, specs []*record.ServiceSpec) error {
	d, all, err := planAll(s, specs)
	if err != nil {
		return err
	}
	views := make([]inspect.PlanView, len(all))
	for i, p := range all {
		views[i] = inspect.NewPlanView(&p.plan)
	}
	err = s.print(views, nil, func(w io.Writer) error { writePlans(w, all, coloured(w)); return nil })
	if err == nil && s.IsSet("out") {
		err = d.save(all)
	}
	if err == nil && anyChange(all) {
		return &codedError{code: exitChanges}
	}
	return err
}

func anyChange(all []*planned) bool {
	return slices.ContainsFunc(all, func(p *planned) bool { return !p.plan.Empty() })
}

// maxPlanFields bounds how many fields of one document are shown.
const maxPlanFields = 40

// writePlans shows plans: the difference by field, the tree of operations, a summary.
func writePlans(w io.Writer, all []*planned, colours bool) {
	total := map[plan.Sign]int{}
	for _, p := range all {
		writePlan(w, p, colours)
		for sign, n := range plan.Counts(p.plan.Lines()) {
			total[sign] += n
		}
	}
	if len(total) == 0 {
		fmt.Fprintln(w, "plan: nothing to do")
		return
	}
	fmt.Fprintf(w, "plan: %d to add, %d to change, %d to replace, %d to remove\n", total[plan.Added], total[plan.Changed], total[plan.Replaced], total[plan.Removed])
}

func writePlan(w io.Writer, p *planned, colours bool) {
	name, before := p.plan.ServiceName, p.deployment.Service
	if p.plan.Empty() {
		fmt.Fprintf(w, "service %s: up to date, revision %d\n", name, before.InEffect().Revision)
		return
	}
	switch {
	case before == nil:
		fmt.Fprintf(w, "service %s: new\n", name)
	case len(p.plan.Change.Fields) == 0:
		fmt.Fprintf(w, "service %s: the same document, revision %d\n", name, before.InEffect().Revision)
	default:
		fmt.Fprintf(w, "service %s: %s, revision %d\n", name, p.plan.Change.Kind, before.InEffect().Revision)
		for i, f := range p.plan.Change.Fields {
			if i == maxPlanFields {
				fmt.Fprintf(w, "    and %d more fields; rcctl plan -o json shows all\n", len(p.plan.Change.Fields)-i)
				break
			}
			fmt.Fprintf(w, "    %s  (%s)\n", clean(forTerminal(f.String())), f.Why)
		}
	}
	fmt.Fprintln(w)
	for _, l := range p.plan.Lines() {
		sign := fmt.Sprintf("%-3s", l.Sign) // all in the same width
		if colours {
			shade := map[plan.Sign]colour{plan.Added: green, plan.Removed: red, plan.Changed: yellow, plan.Replaced: yellow}[l.Sign]
			sign = string(shade) + sign + string(plainColour)
		}
		text := l.Text
		if l.Where != nil {
			text += "  (" + l.Where.String() + ")"
		}
		fmt.Fprintf(w, "  %*s%s %s\n", 2*l.Depth, "", sign, clean(text))
	}
	for _, warning := range p.plan.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", clean(warning))
	}
	fmt.Fprintln(w)
}
