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
	return leaf("deploy -f FILE | --plan FILE [--yes] [--detach | --timeout 5m] [--recreate] [--strategy STRATEGY] "+
		"[--sign-key KEY]",
		"make services what their documents say, in stages",
		`Shows the plan, asks for confirmation, writes it, and shows the rollout until it ends, or the pods if the plan
needs no rollout. Farms carry it out: Ctrl-C, or --timeout, only ends the display. If one of the plans is refused, or
if something changed since they were made, nothing is written. Exit code 5 means that a rollout failed, was rolled back
or aborted, that pods cannot become available, or that the display ended first.

--plan carries out a plan that rcctl plan --out has saved. It is refused (exit code 4) if a document in effect, a
controller, a rollout or the epoch of the cluster has changed since, or if it would do something else than it showed.

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
		func(c *cli.Context) error {
			if c.IsSet("plan") {
				return onConn(readSaved, deploySaved)(c)
			}
			return onConn(readDeploy, runDeploy)(c)
		},
		fileFlag(), savedFlag(), runFlags(), planFlags(),
		signKeyFlag(),
	)
}

func runDeploy(s *conn, specs []*record.ServiceSpec) error {
	_, all, err := planAll(s, specs)
	if err != nil {
		return err
	}
	return carryOut(s, all)
}

func runFlags() []cli.Flag {
	return slices.Concat(
		toggle("yes/y", "do not ask for confirmation; required without a terminal"),
		toggle("detach", "return when it is written"),
		timeoutFlag("`TIME` after which the display ends, with exit code 5; the farms go on"),
		massStopFlag(),
	)
}

func readDeploy(c *cli.Context) ([]*record.ServiceSpec, error) {
	specs, err := readServices(c)
	if err == nil {
		err = mayRun(c)
	}
	return specs, err
}

func mayRun(c *cli.Context) error {
	std := stdioOf(c)
	if c.Bool("detach") && c.IsSet("timeout") {
		return badOption(c, "timeout", "no --timeout together with --detach, because that does not wait")
	}
	if !c.Bool("yes") && (!isTerminal(std.in) || !isTerminal(unguarded(std.out)) || c.String("file") == "-") {
		return usagef(c, "--yes: missing; required, because nobody can confirm the plan on a terminal")
	}
	return nil
}

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
			s.printLine("next: %s", watches(&p.plan))
		default:
			errs = append(errs, f.follow(s.Context, &p.plan))
		}
	}
	return errors.Join(errs...)
}

// watches returns the command to type next.
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

type follower struct {
	s     *conn
	limit time.Duration // for all plans together
	until time.Time
}

// lookLimit is the least time that follow has for one plan, so it reads the state of each service even after the time
// limit.
const lookLimit = 5 * time.Second

// follow shows one plan until it is carried out, cannot be, or the time limit passes.
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

// served waits until as many pods are available as the controller asks for. It ignores a pod that cannot move off its
// node.
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
			const text = "rc %s: the mass-stop breaker withholds stops until you reset it: rcctl farm resume"
			return false, waitEndedf(text, want.Name)
		case st.Is(rc.BreakerTripped):
			return false,
				waitEndedf("rc %s: the mass-stop breaker withholds stops; if you mean these stops, repeat the "+
					"command with --allow-mass-stop, then: rcctl farm resume", want.Name)
		}
		return false, halt.look(ctx, f.s, &want, inspect.Unblocked(o))
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(f.s.out, "rc %s: %d of %d replicas available\n", want.Name, o.Status.Available, o.Status.Desired)
	return nil
}

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
		s.printLine("service %s: rollout %s started", name, id)
	} else {
		s.printLine("service %s: changed", name)
	}
	return nil
}

// confirm asks on the terminal. An answer other than yes, and the end of ctx, is an error.
func confirm(ctx context.Context, std *stdio) error {
	fmt.Fprint(std.out, "deploy this? [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(std.in).ReadString('\n') // an unread line means no
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
	return leaf("plan -f FILE [--out FILE] [--recreate] [--strategy STRATEGY] [-o table|json|yaml]",
		"show what deploying a document would do; writes nothing",
		`Exit code 0: the services are as in the documents. Exit code 6: there is something to do. A plan that cannot
work is refused with exit code 4, the reason, and what would work. --out saves the plan, so that you or somebody else
can carry it out later. The file contains the values of env, so only you can read it.

Examples:
  rcctl plan -f web.yaml
  rcctl plan -f web.yaml --out web.plan        then: rcctl deploy --plan web.plan
  rcctl plan -f web.yaml --strategy in-place
  rcctl plan -f web.yaml -o json | jq '.[].change.fields[] | [.path, .from, .to]'`,
		onConn(readServices, runPlan), fileFlag(), outFlag(), outputFlag(), massStopFlag(), planFlags(),
	)
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

const maxPlanFields = 40

var signColours = map[plan.Sign]colour{
	plan.Added: green, plan.Removed: red, plan.Changed: yellow, plan.Replaced: yellow,
}

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
	fmt.Fprintf(w, "plan: %d to add, %d to change, %d to replace, %d to remove\n",
		total[plan.Added], total[plan.Changed], total[plan.Replaced], total[plan.Removed])
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
			sign = string(signColours[l.Sign]) + sign + string(plainColour)
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
