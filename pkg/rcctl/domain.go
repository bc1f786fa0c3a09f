package rcctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/deploy/plan"
	"github.com/rcfarm/rcfarm/pkg/deploy/record"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func domainShowCommand() *cli.Command {
	return leaf("show [-o table|json|yaml]", "show the domain, and the host names of services",
		`Services whose documents name no host get the meta host, <service>.<domain>, when they are deployed.
NEXT is the host name that the next deploy of a service's document gives it; a dash: no change. A document that names a
host keeps it.

Examples:
  rcctl domain show
  rcctl domain show -o json | jq -r '.services[] | select(.next) | .service'`,
		onList(runDomainShow), outputFlag(),
	)
}

func runDomainShow(s *conn) error {
	rec, err := s.PresentSettings(s.Context)
	if err != nil {
		return fmt.Errorf("read the cluster's domain: %w", err)
	}
	deployed, corrupt, err := s.Deployments.ListDeployed(s.Context)
	if err != nil {
		return err
	}
	v := inspect.NewDomainView(rec.Value, deployed)
	return s.print(v, corrupt, func(w io.Writer) error {
		line := "no domain: services get no host name, unless their documents name one; " +
			"set one: rcctl domain set apps.example"
		if v.Domain != "" {
			line = fmt.Sprintf("domain %s, by %s at %s", v.Domain, v.By, inspect.At(v.At))
		}
		fmt.Fprintln(w, clean(line))
		if len(v.Services) == 0 {
			return nil
		}
		tb := columns("SERVICE", "HOST", "NEXT")
		for _, h := range v.Services {
			next := ""
			if h.Next != nil {
				next = cmp.Or(*h.Next, noHost)
			}
			tb.add(h.Service, cmp.Or(h.Host, noHost), next)
		}
		if err := tb.write(w, coloured(w)); err != nil {
			return err
		}
		if slices.ContainsFunc(v.Services, func(h inspect.HostView) bool { return h.Next != nil }) {
			fmt.Fprintln(w, "NEXT is for documents that name no host; one that names its host keeps it")
		}
		return nil
	})
}

const noHost = "(none)"

func domainSetCommand() *cli.Command {
	return leaf("set DOMAIN", "set the domain below which services get their host names",
		`No pod changes at once. A service takes the domain when its document is deployed the next time, even if the
document has not changed: the plan shows the new host name and replaces the pods, because the host name is in their
manifest. rcctl scale keeps the host name, and rcctl rollback restores the former one. The command also replaces
settings that cannot be read.

Examples:
  rcctl domain set apps.example.org
  rcctl domain set apps.example.org && rcctl domain show`,
		onConn(readDomain, runDomainSet),
	)
}

func readDomain(c *cli.Context) (string, error) {
	domain := c.Args().First()
	var errs field.Errors
	switch {
	case c.NArg() == 0:
		errs.Missing("domain", record.DomainAllowed)
	case c.NArg() > 1:
		return "", unexpected(c, 1, "DOMAIN")
	default:
		record.CheckDomain(&errs, "domain", domain)
	}
	if err := errs.Err(); err != nil {
		return "", usagef(c, "%w", err)
	}
	return domain, nil
}

func domainUnsetCommand() *cli.Command {
	return leaf("unset", "remove the domain: services get no host names any more",
		`No pod changes at once. A service loses its host name when its document is deployed the next time, unless
the document names one.

Examples:
  rcctl domain unset`,
		onList(func(s *conn) error { return runDomainSet(s, "") }),
	)
}

func runDomainSet(s *conn, domain string) error {
	var was string
	same := false
	err := s.writing(s.Context, maxTries, func(ctx context.Context, by string) error {
		if err := s.ensureSchema(ctx); err != nil {
			return err
		}
		rec, err := s.PresentSettings(ctx)
		switch {
		case isCorrupt(err):
			was = "unreadable"
		case err != nil:
			return fmt.Errorf("read the cluster's domain: %w", err)
		default:
			was = cmp.Or(rec.Value.Domain, noHost)
			if same = rec.Value.Domain == domain; same {
				return nil
			}
		}
		line := fmt.Sprintf("domain: %s -> %s", was, cmp.Or(domain, noHost))
		rec.Value = store.Settings{Domain: domain}
		err = s.Operator.SetSettings(ctx, rec, store.NewAudit(by, "set-domain", "", []string{line}))
		return s.did("the domain of the cluster", "rcctl audit --since 10m", err)
	})
	switch {
	case err != nil:
		return fmt.Errorf("set the domain: %w", err)
	case same && domain == "":
		s.printLine("there is no domain; nothing was written")
	case same:
		s.printLine("the domain is %s already; nothing was written", domain)
	default:
		s.printLine("the domain is %s; it was %s", cmp.Or(domain, noHost), clean(was))
		s.printLine("services take it at their next deploy, " +
			"which replaces their pods if the host name changes: rcctl domain show")
	}
	return nil
}

// ofDomain returns the domain for a document that names no host. An unreadable record is an error, because a plan
// without the domain could replace pods needlessly.
func (s *conn) ofDomain(ctx context.Context) (*plan.Domain, error) {
	rec, err := s.PresentSettings(ctx)
	switch {
	case isCorrupt(err):
		return nil,
			unwrittenf("the cluster's domain cannot be read, and without it pods could be replaced needlessly: "+
				"%v; set it again: rcctl domain set DOMAIN", err)
	case err != nil:
		return nil, fmt.Errorf("read the cluster's domain: %w", err)
	}
	return &plan.Domain{Name: rec.Value.Domain, Index: rec.Index}, nil
}

// comesBack returns a remark if the document's host name is the service's name in another domain than the cluster's,
// else "".
func (s *conn) comesBack(ctx context.Context, spec *record.ServiceSpec) string {
	rec, err := s.PresentSettings(ctx)
	host := spec.Host()
	if err != nil || rec.Value.Domain == "" || !strings.HasPrefix(host, spec.Name+".") {
		return ""
	}
	if host == record.HostOf(spec.Name, rec.Value.Domain) {
		return ""
	}
	return fmt.Sprintf("; this restores its host name %s, too: the domain is %s, which the next rcctl deploy takes",
		host, rec.Value.Domain)
}

func changedDomain(err error) bool { return errors.Is(err, store.ErrSettingsChanged) }
