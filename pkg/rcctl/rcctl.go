// Package rcctl is the operators' command line. A file has one command, or those about one kind of object. Commands
// begin in action.go. change.go decides how a controller changes, without I/O; connect.go, write.go and wait.go read
// and write. pkg/inspect joins and explains the records.
package rcctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/docs"
	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// Main runs one command and returns the exit code of the process. All that it started ends with it, or with ctx.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	std := &stdio{in: stdin, out: guarded(stdout), err: guarded(stderr)}
	app := newApp(std)
	ordered, err := interspersed(app, args)
	if err == nil {
		err = app.RunContext(ctx, ordered)
	}
	return std.report(errors.Join(err, endOutput(std.out, std.err)))
}

const about = `rcctl changes and shows the replication controllers (RCs) that farms keep running.
An RC is named by REF: its name, its id, or a unique beginning of its id.
Flags may stand before or after the arguments.

A SERVICE is deployed from a document; its revisions are RCs that rollouts change.

First steps:
  rcctl deploy -f web.yaml          deploy a service: plan, ask, roll out in stages
  rcctl apply -f rc.yaml --wait     create or change an RC, wait until it runs
  rcctl rc list                     all RCs
  rcctl pods --rc web-r1            the pods of one: here of revision 1 of the service web
  rcctl logs web-main-0             the log of one pod
  rcctl nodes                       the machines
  rcctl rc explain web-r1           why it has not converged, and what to do

%s
Consul is found by --consul-addr and --token-file, or by its own environment variables:
CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN, CONSUL_CACERT and the others.
Colours appear only on a terminal, and never with NO_COLOR set. On a terminal, control characters in the text of pods
and records, and those that change the direction of text, are shown as escapes such as \x1b; other output is not
changed.`

// App returns the whole command line, for programs that describe it.
func App() *cli.App { return newApp(&stdio{}) }

func newApp(std *stdio) *cli.App {
	return &cli.App{
		Name: "rcctl", Usage: "operate replication controllers on Consul", Description: fmt.Sprintf(about, exitCodes()),
		Version: version(),
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "consul-addr",
				Usage: "`ADDRESS` of the Consul agent: host:port, URL or unix socket (default: Consul's environment, " +
					"else 127.0.0.1:8500)",
			},
			&cli.StringFlag{
				Name: "token-file", Usage: "`FILE` with the Consul ACL token (default: Consul's environment)",
			},
			&cli.StringFlag{
				Name: "prefix", Value: store.DefaultPrefix, EnvVars: []string{"RCFARM_PREFIX"},
				Usage: "key `PREFIX` of this cluster in Consul; ends with /",
			},
			&cli.StringFlag{
				Name:    "node-token-dir",
				EnvVars: []string{"RCFARM_NODE_TOKEN_DIR"},
				Usage: "`DIRECTORY` with a file for each node, named as the node, that contains the token of its " +
					"preparer, for logs and exec",
			},
			&cli.StringFlag{
				Name: "node-ca", EnvVars: []string{"RCFARM_NODE_CA"},
				Usage: "`FILE` with the CA certificates of preparers, in PEM (default: the system's)",
			},
		},
		Commands: placed("rcctl", []*cli.Command{
			planCommand(), deployCommand(), rolloutCommand(), historyCommand(), diffCommand(), rollbackCommand(),
			scaleServiceCommand(),
			group("service", "list and delete services", serviceListCommand(), serviceDeleteCommand(),
				schemaCommand("service", "the documents of services", "service.schema.json", "rcctl plan",
					docs.ServiceSchema)),
			applyCommand(),
			group("rc", "create, show, explain, scale, disable and delete replication controllers",
				createCommand(), getCommand(), listCommand(), scaleCommand(), disableCommand(), enableCommand(),
				deleteCommand(), statusCommand(), explainCommand(),
				schemaCommand("rc", "the documents of rcs", "controller.schema.json", "rcctl apply --dry-run",
					docs.ControllerSchema)),
			signCommand(), manifestCommand(), podsCommand(),
			group("pod", "show one pod; declare that a pod on a dead machine is gone",
				describeCommand(), forgetCommand()),
			logsCommand(), execCommand(), scaleRequestCommand(), placeCommand(), nodesCommand(),
			group("node", "drain, cordon, sweep and forget machines",
				drainCommand(), undrainCommand(), cordonCommand(), uncordonCommand(), sweepCommand(),
				forgetNodeCommand()),
			labelCommand(), farmsCommand(),
			group("farm",
				"let the farms go on after the mass-stop breaker tripped, or without a machine that does not report; "+
					"show the version gate", resumeCommand(), releaseHoldCommand(), gateCommand()),
			group("domain", "show and set the domain of the cluster, below which services get their host names",
				domainShowCommand(), domainSetCommand(), domainUnsetCommand()),
			group("election", "show who leads, and choose another leader",
				electionListCommand(), electionShowCommand(), electionYieldCommand(), electionPinCommand()),
			auditCommand(),
			group("acl", "print the rules that tokens need", policyCommand()),
			devCommand(),
		}),
		Reader: std.in, Writer: std.out, ErrWriter: std.err,
		HideHelpCommand: true,
		Action:          whichCommand,
		OnUsageError:    onUsageError,
		ExitErrHandler:  func(*cli.Context, error) {}, // exit codes are decided in one place: report
	}
}

// leaf is a command without subcommands. HideHelpCommand is set because an RC may have the name "help".
func leaf(synopsis, usage, description string, action cli.ActionFunc, flags ...[]cli.Flag) *cli.Command {
	c := &cli.Command{
		Usage: usage, UsageText: synopsis, Description: description, Flags: slices.Concat(flags...), Action: action,
		HideHelpCommand: true, OnUsageError: onUsageError,
	}
	if c.Name, _, _ = strings.Cut(synopsis, " "); c.Name == "list" {
		c.Aliases = []string{"ls"}
	}
	return c
}

// option is a flag with a value. A second name follows a slash.
func option(names, usage string) []cli.Flag {
	name, aliases := split(names)
	return []cli.Flag{&cli.StringFlag{Name: name, Aliases: aliases, Usage: usage}}
}

// toggle is a flag without a value.
func toggle(names, usage string) []cli.Flag {
	name, aliases := split(names)
	return []cli.Flag{&cli.BoolFlag{Name: name, Aliases: aliases, Usage: usage}}
}

func split(names string) (name string, aliases []string) {
	all := strings.Split(names, "/")
	return all[0], all[1:]
}

func group(name, usage string, commands ...*cli.Command) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, UsageText: name + " COMMAND [flags] [arguments]", Subcommands: commands,
		HideHelpCommand: true, Action: whichCommand, OnUsageError: onUsageError,
	}
}

// placed puts the names of groups before the usage texts of their commands.
func placed(path string, commands []*cli.Command) []*cli.Command {
	for _, c := range commands {
		c.UsageText = path + " " + c.UsageText
		placed(path+" "+c.Name, c.Subcommands)
	}
	return commands
}

func whichCommand(c *cli.Context) error {
	known := field.Each(c.Command.Subcommands, func(sub *cli.Command) string { return sub.Name })
	slices.Sort(known)
	if c.Args().Present() {
		return usagef(c, "%w", noCommand(c.Args().First(), c.Command.Subcommands))
	}
	return usagef(c, "command: missing; allowed: %s", field.Or(known...))
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	var usage *usageError
	if errors.As(err, &usage) {
		return err
	}
	return usagef(c, "%v", err)
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return app.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && !strings.Contains(app.Version, "+") {
			return fmt.Sprintf("%s (%.12s)", app.Version, s.Value)
		}
	}
	return app.Version
}
