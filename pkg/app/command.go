package app

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
)

// FarmCommand is the command line of a farm; start is called with what it says.
func FarmCommand(start func(FarmConfig) error) *cli.App {
	hostname, _ := os.Hostname() // the flag is checked, whatever its default
	var cfg FarmConfig
	var coordinated bool
	return &cli.App{
		Name: "farm", Version: Version, Usage: "own replication controllers and keep their pods placed",
		Description: "Example:\n   farm --id farm-1 --data-dir /var/lib/rcfarm/farm\n\n" +
			"Consul is reached as CONSUL_HTTP_ADDR and Consul's other variables say, unless flags say otherwise.\n" +
			"SIGTERM ends it in order: it stops working and gives its controllers up. A second one ends it at once.",
		Flags: append(commonFlags(&cfg.Common, "/var/lib/rcfarm/farm", "127.0.0.1:7460"),
			&cli.StringFlag{Name: "id", Usage: "stable name, unique among the farms", Value: hostname, DefaultText: "the host name", Destination: &cfg.ID},
			&cli.StringFlag{Name: "session", Usage: "check: the local agent vouches for the farm. ttl: no agent is needed on this machine, and --consul-addr may name a server; the session is renewed there, at least 10 s long, and a farm that dies is replaced after 10 to 20 s instead of two", Value: string(consul.ByCheck), Destination: &cfg.Session},
			&cli.StringFlag{Name: "rc-selector", Usage: "work only on controllers whose labels match this `SELECTOR`, such as env=prod (default: all)", Destination: &cfg.RCSelector},
			&cli.BoolFlag{Name: "coordinated-election", Usage: "ask the other farms who is to lead: the oldest version does what belongs to no controller. false: lead whenever nobody does, beside farms that do not coordinate", Value: true, Destination: &coordinated},
			&cli.DurationFlag{Name: "forget-node-after", Usage: "remove the records of a node whose machine has been gone for this long, from 10s on, where no pods have to do with it; 0: never. All farms should have the same", Destination: &cfg.ForgetNodeAfter},
			&cli.DurationFlag{Name: "sweep-orphans-after", Usage: "ask for the end of pods that nodes are told of and whose controller has neither a record nor placements for this long, from 10s on; 0: never. All farms should have the same", Destination: &cfg.SweepOrphansAfter},
			&cli.StringFlag{Name: "metrics-label", Usage: "count the replicas of all controllers by the values of this `LABEL` of theirs: few, such as teams or environments (default: all together)", Destination: &cfg.MetricsLabel},
			&cli.StringFlag{Name: "scheduler-url", Usage: "ask the scheduler at this `URL` for nodes, in place of the built-in one; https, or http where the network is trusted. All farms should have the same", Destination: &cfg.SchedulerAt.URL},
			&cli.StringFlag{Name: "scheduler-ca", Usage: "`FILE` with the certificates that are believed of it, in PEM, read at the start (default: the machine's)", Destination: &cfg.SchedulerAt.CAFile},
			&cli.StringFlag{Name: "scheduler-token-file", Usage: "`FILE` with the token that it is shown, one word, read again for each request; only over https or to this machine", Destination: &cfg.SchedulerAt.TokenFile},
			&cli.StringFlag{Name: "node-token-dir", Usage: "`DIRECTORY` with a file for each node, called as the node, that holds the token of its API: farms tell nodes of their intents that were started with --intents push", Destination: &cfg.Nodes.TokenDir},
			&cli.StringFlag{Name: "node-ca", Usage: "`FILE` with the certificates that are believed of those nodes, in PEM, read at the start (default: the machine's)", Destination: &cfg.Nodes.CAFile},
			&cli.StringFlag{Name: "alert-webhook", EnvVars: []string{"RCFARM_ALERT_WEBHOOK"}, Usage: "also post alerts, and their ends, as JSON to this `URL`, until it answers with a status from 200 to 299: see docs/running.md. The variable keeps it out of the process list. All farms should have the same", Destination: &cfg.AlertWebhook},
			&cli.IntFlag{Name: "workers", Usage: "controllers worked on at once, 1 to 256; what they ask Consul for is sent together", Value: 64, Destination: &cfg.Workers},
		),
		OnUsageError: onUsageError, ExitErrHandler: exitNowhere,
		Action: flagsAlone(func() error {
			cfg.Uncoordinated = !coordinated
			return start(cfg)
		}),
	}
}

// PreparerCommand is the command line of a preparer; start, or supervisor for its other half, is called with what it says.
func PreparerCommand(start func(PreparerConfig) error, supervisor func(SupervisorConfig) error) *cli.App {
	hostname, _ := os.Hostname() // the flag is checked, whatever its default
	var cfg PreparerConfig
	var labels cli.StringSlice
	return &cli.App{
		Name: "preparer", Version: Version, Usage: "run the pods of this node",
		Description: "Example:\n   preparer --node web-17 --address 10.0.3.17 --label rack=a --label disk=ssd --slots 50\n\n" +
			"Consul is reached as CONSUL_HTTP_ADDR and Consul's other variables say, unless flags say otherwise.\n" +
			"Pods run on when it ends, and keep their pids when it starts again.",
		Flags: append(commonFlags(&cfg.Common, "/var/lib/rcfarm/preparer", "127.0.0.1:7461"),
			&cli.Int64Flag{Name: "artifact-cache-bytes", Usage: "beyond this, artifacts that no installed version needs are removed, the least recently used first; 1 or more", Value: artifact.DefaultCacheBytes, Destination: &cfg.Artifacts.CacheBytes},
			&cli.Int64Flag{Name: "artifact-reserve-bytes", Usage: "free disk space that fetching and unpacking leave; 0: none", Value: artifact.DefaultReserveBytes, Destination: &cfg.Artifacts.ReserveBytes},
			&cli.Int64Flag{Name: "artifact-max-bytes", Usage: "largest archive that is fetched, 1 or more", Value: artifact.DefaultMaxBytes, Destination: &cfg.Artifacts.MaxBytes},
			&cli.Int64Flag{Name: "artifact-max-unpacked-bytes", Usage: "most that an archive may unpack to, 1 or more", Value: artifact.DefaultMaxUnpackedBytes, Destination: &cfg.Artifacts.MaxUnpackedBytes},
			&cli.DurationFlag{Name: "artifact-timeout", Usage: "for one whole fetch with its retries, 1s or more", Value: artifact.DefaultFetchTimeout, Destination: &cfg.Artifacts.FetchTimeout},
			&cli.DurationFlag{Name: "artifact-stall-timeout", Usage: "a server that sends less than 64 KiB in this time is given up, and tried again; 1s or more", Value: artifact.DefaultStallTimeout, Destination: &cfg.Artifacts.StallTimeout},
			&cli.StringFlag{Name: "api-addr", Usage: "`ADDRESS` of the API for logs and commands in pods: unix (api/socket in the data directory, for root and the preparer's own user), off, or an IP address and a port (0: a free one), which needs a token, and beyond loopback TLS. The node's record says where", Value: nodeapi.Unix, Destination: &cfg.API.Addr},
			&cli.StringFlag{Name: "api-token-file", Usage: "`FILE` with the token that requests must bear, one word of at least 16 characters, read anew for each request; with an address and a port, and only then", Destination: &cfg.API.TokenFile},
			&cli.StringFlag{Name: "api-tls-cert", Usage: "`FILE` with the certificate of the API, in PEM, that names the node; read anew for each connection; needed beyond loopback (default: plain HTTP)", Destination: &cfg.API.CertFile},
			&cli.StringFlag{Name: "api-tls-key", Usage: "`FILE` with the key of that certificate, in PEM", Destination: &cfg.API.KeyFile},
			&cli.StringFlag{Name: "node", Usage: "stable name, unique among the nodes", Value: hostname, DefaultText: "the host name", Destination: &cfg.Node},
			&cli.BoolFlag{Name: "take-over-name", Usage: "take the node's name from another host, of whose pods nothing runs any more; for one start", Destination: &cfg.TakeOver},
			&cli.StringFlag{Name: "address", Usage: "IP address that pods listen on, given to them as NODE_ADDRESS", Value: "127.0.0.1", Destination: &cfg.Address},
			&cli.StringSliceFlag{Name: "label", Usage: "`KEY=VALUE` that selectors match; may be repeated", Destination: &labels},
			&cli.IntFlag{Name: "slots", Usage: "how many pods the node takes", Value: 100, Destination: &cfg.Slots},
			&cli.Int64Flag{Name: "cpu", Usage: "thousandths of a core for pods; 0: not limited", Value: Detect, DefaultText: "what the machine and its cgroups have, without --reserve-cpu", Destination: &cfg.CPU},
			&cli.Int64Flag{Name: "memory", Usage: "bytes for pods; 0: not limited", Value: Detect, DefaultText: "what the machine and its cgroups have, without --reserve-memory", Destination: &cfg.Memory},
			&cli.Int64Flag{Name: "reserve-cpu", Usage: "thousandths of a core that all pods together, hooks and commands included, leave to the machine; 0: none", Destination: &cfg.ReserveCPU},
			&cli.Int64Flag{Name: "reserve-memory", Usage: "bytes that all pods together leave to the machine; 0: none", Destination: &cfg.ReserveMemory},
			&cli.IntFlag{Name: "port-min", Usage: "first port of the range for dynamic ports, 1 to 65535", Value: 20000, Destination: &cfg.PortsMin},
			&cli.StringFlag{Name: "isolation", Usage: "auto: keep pods apart as far as the host allows, say once what it does not, and start none as root for want of users. on: fully, or do not start, and take no new intents while pods can write to Consul. off: pods run as the preparer does", Value: IsolationAuto, Destination: &cfg.Isolation},
			&cli.StringFlag{Name: "user-range", Usage: "`FIRST-LAST` user and group numbers, one of which each pod is given", Value: DefaultUserRange, Destination: &cfg.UserRange},
			&cli.BoolFlag{Name: "allow-root-pods", Usage: "start pods whose manifests say user: root", Destination: &cfg.AllowRoot},
			&cli.IntFlag{Name: "port-max", Usage: "last port of that range, not below --port-min", Value: 29999, Destination: &cfg.PortsMax},
			&cli.StringFlag{Name: "trust-policy", Usage: "`FILE` that says whose manifests this node runs (default: anybody's)", Destination: &cfg.TrustPolicy},
			&cli.StringFlag{Name: "intents", Usage: "watch: a standing query tells the node of its intents. push: farms do, through its API, which needs an address, a token and TLS; else it watches", Value: IntentsWatch, Destination: &cfg.Intents},
			&cli.DurationFlag{Name: "intents-every", Usage: "with --intents push, how long the node waits for a farm, give or take half, before it reads its intents by itself; 1s to 1h", Value: preparer.DefaultPullEvery, Destination: &cfg.PullEvery},
			&cli.StringFlag{Name: "hooks-dir", Usage: "`DIRECTORY` of the node's own hooks (default: none)", Destination: &cfg.HooksDir},
			&cli.DurationFlag{Name: "keep-stopped", Usage: "how long home, logs and versions of a stopped pod stay on the disk", Value: preparer.DefaultKeepStopped, Destination: &cfg.KeepStopped},
		),
		OnUsageError: onUsageError, ExitErrHandler: exitNowhere,
		Action: flagsAlone(func() error {
			cfg.Labels = labels.Value()
			return start(cfg)
		}),
		Commands: []*cli.Command{supervise(supervisor)},
	}
}

// supervise is the preparer's other half; it starts it by itself.
func supervise(start func(SupervisorConfig) error) *cli.Command {
	const one = "shim"
	var cfg SupervisorConfig
	var former string // preparers from before ADR 17 say which supervisor they mean
	return &cli.Command{
		Name: "supervise", Hidden: true, Usage: "keep this node's processes running (started by the preparer)",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "runtime", Value: one, Destination: &former},
			&cli.StringFlag{Name: "dir", Destination: &cfg.Dir},
			&cli.StringFlag{Name: "lifeline", Destination: &cfg.Lifeline},
		},
		OnUsageError: onUsageError,
		Action: flagsAlone(func() error {
			if cfg.Dir == "" { // a flag that is required would have the library print the help
				return misconfigured(errors.New("dir: missing; allowed: the directory that a preparer started it for"))
			}
			if former != one {
				return misconfigured(fmt.Errorf("runtime: %q is not valid; allowed: %s", former, one))
			}
			return start(cfg)
		}),
	}
}
