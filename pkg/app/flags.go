package app

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// The default addresses of the debug servers.
const (
	FarmDebugAddr     = "127.0.0.1:7460"
	PreparerDebugAddr = "127.0.0.1:7461"
)

// DefaultKeepStopped is how long a node keeps what a stopped pod leaves behind.
const DefaultKeepStopped = preparer.DefaultKeepStopped

// DefaultSession is who vouches for a farm unless it is told otherwise.
const DefaultSession = string(consul.ByCheck)

// CommonFlags returns the flags that all daemons share, bound to c.
// dataDir and debugAddr are the defaults of one daemon.
func CommonFlags(c *Common, dataDir, debugAddr string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "consul-addr", Usage: "`ADDRESS` of the local Consul agent (default: CONSUL_HTTP_ADDR, else 127.0.0.1:8500)", Destination: &c.ConsulAddr},
		&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the Consul ACL token, read again when it changes (default: CONSUL_HTTP_TOKEN_FILE, else CONSUL_HTTP_TOKEN)", Destination: &c.TokenFile},
		&cli.StringFlag{Name: "prefix", Usage: "key prefix of everything in Consul", Value: store.DefaultPrefix, EnvVars: []string{"RCFARM_PREFIX"}, Destination: &c.Prefix},
		&cli.DurationFlag{Name: "ttl", Usage: "how long this daemon may be silent before others act", Value: consul.DefaultTTL, Destination: &c.TTL},
		&cli.StringFlag{Name: "data-dir", Usage: "`DIRECTORY` for this daemon alone", Value: dataDir, Destination: &c.DataDir},
		&cli.StringFlag{Name: "log-level", Usage: "debug, info, warning or error", Value: "info", Destination: &c.LogLevel},
		&cli.StringFlag{Name: "log-format", Usage: "text or json", Value: "text", Destination: &c.LogFormat},
		&cli.StringFlag{Name: "debug-addr", Usage: "`ADDRESS` for /metrics, /healthz, /readyz and /debug/pprof; port 0: a free one; off: none", Value: debugAddr, Destination: &c.DebugAddr},
		&cli.BoolFlag{Name: "debug-public", Usage: "allow a debug address that other machines can reach", Destination: &c.DebugPublic},
		// Hidden, because pods end with it too: see Lifeline, and the last chapter of docs/architecture.md.
		&cli.StringFlag{Name: "lifeline", Usage: "pipe of a development cluster to end with", Hidden: true, Destination: &c.Lifeline},
	}
}

// Action returns the action of a daemon's command, which takes flags alone. The flags after another argument would be
// ignored, --data-dir among them; so nothing is started then.
func Action(start func() error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.Args().Present() {
			return fmt.Errorf("unexpected argument %q; allowed: flags alone, see --help. What follows it was not read. "+
				"A flag that takes no value is turned off as --FLAG=false", c.Args().First())
		}
		return start()
	}
}
