// Package rcctl is the operators' command line: one file for a command, or for commands about one thing. action.go says how commands begin,
// output.go how they print. What decides (change.go) is apart from what reads and writes (connect.go, write.go, wait.go);
// what joins and explains the records that were read is in pkg/inspect.
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

// Main runs one command and returns the exit code of the process. Its end or that of ctx ends everything it started.
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
  rcctl pods --rc web               where its pods are, and how they are
  rcctl logs web-main-0             what one of them writes
  rcctl nodes                       the machines
  rcctl rc explain web              why it is not as it should be, and what to do

%s
Consul is found by --consul-addr and --token-file, or by its own environment variables:
CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN, CONSUL_CACERT and the others.
Colours appear only on a terminal, and never with NO_COLOR set. What pods and records say is shown on a terminal with control
characters, and those that turn the direction of text, as escapes such as \x1b; elsewhere it is as it is.`

// App is the whole command line, for whoever describes it.
func App() *cli.App { return newApp(&stdio{}) }

// newApp makes the whole command line.
func newApp(std *stdio) *cli.App {
	return &cli.App{
		Name: "rcctl", Usage: "operate replication controllers on Consul", Description: fmt.Sprintf(about, exitCodes()),
		Version: version(),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "consul-addr", Usage: "`ADDRESS` of the Consul agent: host:port, URL or unix socket (default: Consul's environment, else 127.0.0.1:8500)"},
			&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the Consul ACL token (default: Consul's environment)"},
			&cli.StringFlag{Name: "prefix", Value: store.DefaultPrefix, EnvVars: []string{"RCFARM_PREFIX"}, Usage: "key `PREFIX` of this cluster in Consul; ends with /"},
			&cli.StringFlag{Name: "node-token-dir", EnvVars: []string{"RCFARM_NODE_TOKEN_DIR"}, Usage: "`DIRECTORY` with a file for each node, called as the node, that holds the token of its preparer, for logs and exec"},
			&cli.StringFlag{Name: "node-ca", EnvVars: []string{"RCFARM_NODE_CA"}, Usage: "`FILE` with the certificates, in PEM, that vouch for preparers (default: the system's)"},
		},
		Commands: []*cli.Command{
			planCommand(), deployCommand(), rolloutCommand(), historyCommand(), diffCommand(), rollbackCommand(), scaleServiceCommand(),
			group("service", "list and delete services", serviceListCommand(), serviceDeleteCommand(),
				schemaCommand("service", "the documents of services", "service.schema.json", "rcctl plan", docs.ServiceSchema)),
			applyCommand(),
			group("rc", "create, show, explain, scale, disable and delete replication controllers",
				createCommand(), getCommand(), listCommand(), scaleCommand(), disableCommand(), enableCommand(), deleteCommand(), statusCommand(), explainCommand(),
				schemaCommand("rc", "the documents of rcs", "controller.schema.json", "rcctl apply --dry-run", docs.ControllerSchema)),
			signCommand(), manifestCommand(), podsCommand(),
			group("pod", "show one pod; declare one on a machine that is gone as gone", describeCommand(), forgetCommand()),
			logsCommand(), execCommand(), scaleRequestCommand(), placeCommand(), nodesCommand(),
			group("node", "drain, cordon, sweep and forget machines",
				drainCommand(), undrainCommand(), cordonCommand(), uncordonCommand(), sweepCommand(), forgetNodeCommand()),
			labelCommand(), farmsCommand(),
			group("farm", "let the farms go on: after the mass-stop breaker tripped, without a machine that does not answer; the version gate", resumeCommand(), releaseHoldCommand(), gateCommand()),
			group("domain", "show and set the domain of the cluster, below which services get their host names",
				domainShowCommand(), domainSetCommand(), domainUnsetCommand()),
			group("election", "show who leads, and have somebody else lead", electionListCommand(), electionShowCommand(), electionYieldCommand(), electionPinCommand()),
			auditCommand(),
			group("acl", "print the rules that tokens need", policyCommand()),
			devCommand(),
		},
		Reader: std.in, Writer: std.out, ErrWriter: std.err,
		HideHelpCommand: true,
		Action:          whichCommand,
		OnUsageError:    onUsageError,
		ExitErrHandler:  func(*cli.Context, error) {}, // exit codes are decided in one place: report
	}
}

// leaf completes a command that has no subcommands. Without HideHelpCommand an RC named "help" could not be named.
func leaf(c *cli.Command) *cli.Command {
	c.HideHelpCommand = true
	c.OnUsageError = onUsageError
	return c
}

// group is a command that only has subcommands.
func group(name, usage string, commands ...*cli.Command) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, UsageText: "rcctl " + name + " COMMAND [flags] [arguments]", Subcommands: commands,
		HideHelpCommand: true, Action: whichCommand, OnUsageError: onUsageError,
	}
}

// whichCommand is the action of what only has subcommands.
func whichCommand(c *cli.Context) error {
	known := field.Each(c.Command.Subcommands, func(sub *cli.Command) string { return sub.Name })
	slices.Sort(known)
	if c.Args().Present() {
		return usagef(c, "%w", noCommand(c.Args().First(), c.Command.Subcommands))
	}
	return usagef(c, "which command? allowed: %s", field.Or(known...))
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	var usage *usageError
	if errors.As(err, &usage) {
		return err
	}
	return usagef(c, "%v", err)
}

// version is that of rcfarm, with the commit where only the build knows it.
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
