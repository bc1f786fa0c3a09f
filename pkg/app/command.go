package app

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
)

// FarmCommand is the command line of a farm.
func FarmCommand(start func(FarmConfig) error) *cli.App {
	hostname, _ := os.Hostname() // Validate checks the flag, also its default
	var cfg FarmConfig
	var coordinated bool
	return &cli.App{
		Name: "farm", Version: Version, Usage: "own replication controllers and keep their pods placed",
		Description: "Example:\n   farm --id farm-1 --data-dir /var/lib/rcfarm/farm\n\n" +
			"Flags, or else CONSUL_HTTP_ADDR and Consul's other variables, say how to reach Consul.\n" +
			"At SIGTERM it stops working and releases its controllers. A second one ends it at once.",
		Flags: append(commonFlags(&cfg.Common, "/var/lib/rcfarm/farm", "127.0.0.1:7460"),
			&cli.StringFlag{
				Name: "id", Usage: "stable name, unique among the farms",
				Value: hostname, DefaultText: "the host name", Destination: &cfg.ID,
			},
			textFlag(&cfg.Session, "session", string(consul.ByCheck),
				"check: the local agent checks that the farm lives. ttl: no agent is needed on this machine, and "+
					"--consul-addr may name a server; the session there has a TTL of at least 10 s, so a farm that "+
					"dies is replaced after 10 to 20 s instead of two"),
			textFlag(&cfg.RCSelector, "rc-selector", "",
				"work only on controllers whose labels match this `SELECTOR`, such as env=prod (default: all)"),
			boolFlag(&coordinated, "coordinated-election", true,
				"elect the leader together with the other farms: the oldest version leads, and does the work that "+
					"belongs to no controller. false: lead whenever no farm does, beside farms that do not coordinate"),
			timeFlag(&cfg.ForgetNodeAfter, "forget-node-after", 0,
				"remove the records of a node whose machine has been gone for this long, 10s or more, unless pods "+
					"are left on it; 0: never. All farms should have the same"),
			timeFlag(&cfg.SweepOrphansAfter, "sweep-orphans-after", 0,
				"request the stop of pods that have an intent, and whose controller has had neither a record nor "+
					"placements for this long, 10s or more; 0: never. All farms should have the same"),
			textFlag(&cfg.MetricsLabel, "metrics-label", "",
				"count the replicas of controllers by the values of this `LABEL` of the controllers, which should "+
					"have few values, such as teams or environments (default: all together)"),
			textFlag(&cfg.SchedulerAt.URL, "scheduler-url", "",
				"ask the scheduler at this `URL` for nodes, in place of the built-in one; https, or http in a "+
					"trusted network. All farms should have the same"),
			textFlag(&cfg.SchedulerAt.CAFile, "scheduler-ca", "",
				"`FILE` with the CA certificates of the scheduler, in PEM, read at the start (default: the "+
					"machine's)"),
			textFlag(&cfg.SchedulerAt.TokenFile, "scheduler-token-file", "",
				"`FILE` with the token for the scheduler, one word, read again for each request; only over https or "+
					"to this machine"),
			textFlag(&cfg.Nodes.TokenDir, "node-token-dir", "",
				"`DIRECTORY` with a file for each node, named as the node, that contains the token of its API: for "+
					"pushes to nodes that were started with --intents push"),
			textFlag(&cfg.Nodes.CAFile, "node-ca", "",
				"`FILE` with the CA certificates of those nodes, in PEM, read at the start (default: the machine's)"),
			&cli.StringFlag{
				Name: "alert-webhook", EnvVars: []string{"RCFARM_ALERT_WEBHOOK"},
				Usage: "also post alerts, and their ends, as JSON to this `URL`, until it answers with a status from " +
					"200 to 299: see docs/running.md. The variable keeps it out of the process list. All farms " +
					"should have the same", Destination: &cfg.AlertWebhook,
			},
			countFlag(&cfg.Workers, "workers", 64,
				"controllers worked on at once, 1 to 256; their reads of Consul are sent together"),
		),
		OnUsageError: onUsageError, ExitErrHandler: exitNowhere,
		Action: flagsAlone(func() error {
			cfg.Uncoordinated = !coordinated
			return start(cfg)
		}),
	}
}

// PreparerCommand is the command line of a preparer. supervisor runs the command supervise, which only preparers use.
func PreparerCommand(start func(PreparerConfig) error, supervisor func(SupervisorConfig) error) *cli.App {
	hostname, _ := os.Hostname() // NewPreparer checks the flag, also its default
	var cfg PreparerConfig
	var labels, cas, tokens, plain, capabilities cli.StringSlice
	return &cli.App{
		Name: "preparer", Version: Version, Usage: "run the pods of this node",
		Description: "Example:\n   preparer --node web-17 --address 10.0.3.17 --label rack=a --label disk=ssd " +
			"--slots 50\n\n" +
			"Flags, or else CONSUL_HTTP_ADDR and Consul's other variables, say how to reach Consul.\n" +
			"Pods run on when it ends, and keep their pids when it starts again.",
		Flags: append(commonFlags(&cfg.Common, "/var/lib/rcfarm/preparer", "127.0.0.1:7461"),
			amountFlag(&cfg.Artifacts.CacheBytes, "artifact-cache-bytes", artifact.DefaultCacheBytes,
				"beyond this, artifacts that no installed version needs are removed, the least recently used first; "+
					"1 or more"),
			amountFlag(&cfg.Artifacts.ReserveBytes, "artifact-reserve-bytes", artifact.DefaultReserveBytes,
				"disk space that fetching and unpacking keep free, also of images; 0: none"),
			amountFlag(&cfg.Artifacts.MaxBytes, "artifact-max-bytes",
				artifact.DefaultMaxBytes, "largest archive that is fetched, 1 or more"),
			amountFlag(&cfg.Artifacts.MaxUnpackedBytes, "artifact-max-unpacked-bytes",
				artifact.DefaultMaxUnpackedBytes, "most that an archive may unpack to, 1 or more"),
			timeFlag(&cfg.Artifacts.FetchTimeout, "artifact-timeout",
				artifact.DefaultFetchTimeout, "for one whole fetch with its retries, 1s or more"),
			timeFlag(&cfg.Artifacts.StallTimeout, "artifact-stall-timeout", artifact.DefaultStallTimeout,
				"a fetch that receives less than 64 KiB in this time is ended, and tried again; 1s or more"),
			amountFlag(&cfg.Images.CacheBytes, "image-cache-bytes", image.DefaultCacheBytes,
				"beyond this, images that no installed version needs are removed, the least recently used first; "+
					"1 or more"),
			amountFlag(&cfg.Images.MaxBytes, "image-max-bytes", image.DefaultMaxBytes,
				"most that the layers of an image may have as downloaded, 1 or more"),
			amountFlag(&cfg.Images.MaxUnpackedBytes, "image-max-unpacked-bytes", image.DefaultMaxUnpackedBytes,
				"most that the layers of an image may unpack to, 1 or more"),
			timeFlag(&cfg.Images.PullDeadline, "pull-deadline", image.DefaultPullTimeout,
				"for one whole pull of an image with its retries, 1s to 24h; while bytes arrive, the pod's "+
					"progress_deadline does not run"),
			textFlag(&cfg.Images.DockerConfig, "registry-config", "",
				"`FILE` with credentials of registries: a config.json of Docker, which may name credential helpers; "+
					"read again for each pull"),
			&cli.StringSliceFlag{
				Name: "registry-ca", Destination: &cas,
				Usage: "`REGISTRY=FILE` with certificates in PEM, accepted beside the machine's; may be repeated",
			},
			&cli.StringSliceFlag{
				Name: "registry-token-file", Destination: &tokens,
				Usage: "`REGISTRY=FILE` with a bearer token, read again for each pull; may be repeated",
			},
			&cli.StringSliceFlag{
				Name: "registry-plain-http", Destination: &plain,
				Usage: "`REGISTRY` without TLS; may be repeated",
			},
			textFlag(&cfg.API.Addr, "api-addr", nodeapi.Unix,
				"`ADDRESS` of the API for logs and commands in pods: unix (api/socket in the data directory, for "+
					"root and the preparer's own user), off, or an IP address and a port (0: a free one), which "+
					"needs a token, and beyond loopback TLS. The node's record has the address"),
			textFlag(&cfg.API.TokenFile, "api-token-file", "",
				"`FILE` with the token that requests must have, one word of at least 16 characters, read again for "+
					"each request; with an address and a port, and only then"),
			textFlag(&cfg.API.CertFile, "api-tls-cert", "",
				"`FILE` with the certificate of the API, in PEM, that names the node; read again for each "+
					"connection; required beyond loopback (default: plain HTTP)"),
			textFlag(&cfg.API.KeyFile, "api-tls-key", "", "`FILE` with the key of that certificate, in PEM"),
			&cli.StringFlag{
				Name: "node", Usage: "stable name, unique among the nodes",
				Value: hostname, DefaultText: "the host name", Destination: &cfg.Node,
			},
			boolFlag(&cfg.TakeOver, "take-over-name", false,
				"take the node's name from another host, whose pods do not run any more; for one start"),
			textFlag(&cfg.Address, "address", "127.0.0.1",
				"IP address that pods listen on, given to them as NODE_ADDRESS"),
			&cli.StringSliceFlag{
				Name: "label", Usage: "`KEY=VALUE` that selectors match; may be repeated",
				Destination: &labels,
			},
			countFlag(&cfg.Slots, "slots", 100, "how many pods the node takes"),
			&cli.Int64Flag{
				Name: "cpu", Usage: "thousandths of a core for pods; 0: not limited",
				Value: Detect, DefaultText: "what the machine and its cgroups have, without --reserve-cpu",
				Destination: &cfg.CPU,
			},
			&cli.Int64Flag{
				Name: "memory", Usage: "bytes for pods; 0: not limited",
				Value: Detect, DefaultText: "what the machine and its cgroups have, without --reserve-memory",
				Destination: &cfg.Memory,
			},
			amountFlag(&cfg.ReserveCPU, "reserve-cpu", 0,
				"thousandths of a core that all pods together, hooks and commands included, leave to the machine; "+
					"0: none"),
			amountFlag(&cfg.ReserveMemory, "reserve-memory", 0,
				"bytes that all pods together leave to the machine; 0: none"),
			countFlag(&cfg.PortsMin, "port-min", 20000, "first port of the range for dynamic ports, 1 to 65535"),
			textFlag(&cfg.Isolation, "isolation", IsolationAuto,
				"auto: isolate pods as far as the host allows, log once what it does not allow, and start no pod as "+
					"root because users are missing. on: isolate fully, or do not start, and take no new intents "+
					"while pods can write to Consul. off: pods run as the preparer's user"),
			textFlag(&cfg.UserRange, "user-range", DefaultUserRange,
				"`FIRST-LAST` user and group numbers; each pod gets one of them"),
			textFlag(&cfg.ContainerUserRange, "container-user-range", DefaultContainerUserRange,
				"`FIRST-LAST` user and group numbers; the containers of each pod get a block of 65536 of them"),
			&cli.StringSliceFlag{
				Name: "allow-capability", Destination: &capabilities,
				Usage: "`NAME` of a capability that manifests may add to a container, such as NET_ADMIN; may be repeated",
			},
			boolFlag(&cfg.AllowRoot, "allow-root-pods", false, "start pods whose manifests say user: root"),
			countFlag(&cfg.PortsMax, "port-max", 29999, "last port of that range, not below --port-min"),
			textFlag(&cfg.TrustPolicy, "trust-policy", "",
				"`FILE` with the keys whose manifests this node runs (default: all manifests)"),
			textFlag(&cfg.Intents, "intents", IntentsWatch,
				"watch: the node has a standing query for its intents. push: farms push to its API, which needs an "+
					"address, a token and TLS; without them it watches"),
			timeFlag(&cfg.PullEvery, "intents-every", preparer.DefaultPullEvery,
				"with --intents push, how long the node waits for a push, give or take half, before it reads its "+
					"intents by itself; 1s to 1h"),
			textFlag(&cfg.HooksDir, "hooks-dir", "", "`DIRECTORY` of the node's own hooks (default: none)"),
			timeFlag(&cfg.KeepStopped, "keep-stopped",
				preparer.DefaultKeepStopped, "how long home, logs and versions of a stopped pod are kept on the disk"),
		),
		OnUsageError: onUsageError, ExitErrHandler: exitNowhere,
		Action: flagsAlone(func() error {
			cfg.Labels, cfg.Capabilities = labels.Value(), capabilities.Value()
			cfg.Images.CAs, cfg.Images.TokenFiles, cfg.Images.PlainHTTP = cas.Value(), tokens.Value(), plain.Value()
			return start(cfg)
		}),
		Commands: []*cli.Command{supervise(supervisor)},
	}
}

func supervise(start func(SupervisorConfig) error) *cli.Command {
	const one = "shim"
	var cfg SupervisorConfig
	var former string // preparers from before ADR 17 pass the name of a supervisor
	return &cli.Command{
		Name: "supervise", Hidden: true, Usage: "keep this node's processes running (started by the preparer)",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "runtime", Value: one, Destination: &former},
			&cli.StringFlag{Name: "dir", Destination: &cfg.Dir},
			&cli.StringFlag{Name: "lifeline", Destination: &cfg.Lifeline},
		},
		OnUsageError: onUsageError,
		Action: flagsAlone(func() error {
			if cfg.Dir == "" { // with a required flag, the library would print the help
				return misconfigured(errors.New("dir: missing; allowed: the supervisor's directory; " +
					"only a preparer runs this command"))
			}
			if former != one {
				return misconfigured(fmt.Errorf("runtime: %q is not valid; allowed: %s", former, one))
			}
			return start(cfg)
		}),
	}
}
