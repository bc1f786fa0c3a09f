package app

import (
	"cmp"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
	"github.com/rcfarm/rcfarm/pkg/preparer/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// commonFlags returns the flags that all daemons share, bound to c.
// dataDir and debugAddr are the defaults of one daemon.
func commonFlags(c *Common, dataDir, debugAddr string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "consul-addr", Usage: "`ADDRESS` of the local Consul agent (default: CONSUL_HTTP_ADDR, else 127.0.0.1:8500)", Destination: &c.ConsulAddr},
		&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the Consul ACL token, read again when it changes (default: CONSUL_HTTP_TOKEN_FILE, else CONSUL_HTTP_TOKEN)", Destination: &c.TokenFile},
		&cli.StringFlag{Name: "prefix", Usage: "key prefix of everything in Consul", Value: store.DefaultPrefix, EnvVars: []string{"RCFARM_PREFIX"}, Destination: &c.Prefix},
		&cli.DurationFlag{Name: "ttl", Usage: "how long this daemon may be silent before others act, 1s to 1m", Value: consul.DefaultTTL, Destination: &c.TTL},
		&cli.StringFlag{Name: "data-dir", Usage: "`DIRECTORY` for this daemon alone", Value: dataDir, Destination: &c.DataDir},
		&cli.StringFlag{Name: "log-level", Usage: "debug, info, warning or error", Value: "info", Destination: &c.LogLevel},
		&cli.StringFlag{Name: "log-format", Usage: "text or json", Value: "text", Destination: &c.LogFormat},
		&cli.StringFlag{Name: "debug-addr", Usage: "`ADDRESS` for /metrics, /healthz, /readyz and /debug/pprof; port 0: a free one, which the log says; off: none", Value: debugAddr, Destination: &c.DebugAddr},
		&cli.BoolFlag{Name: "debug-public", Usage: "allow a debug address that other machines can reach", Destination: &c.DebugPublic},
		&cli.StringFlag{Name: "emulation-version", Usage: "write no records of a later `VERSION`, so that the version before can be started again: see docs/compatibility.md (default: the newest that this program knows)", Destination: &c.EmulationVersion},
		// Hidden, because pods end with it too: see Lifeline, and the last chapter of docs/architecture.md.
		&cli.StringFlag{Name: "lifeline", Usage: "pipe of a development cluster to end with", Hidden: true, Destination: &c.Lifeline},
	}
}

// flagsAlone returns the action of a daemon's command, which takes flags alone. The flags after another argument would be
// ignored, --data-dir among them; so nothing is started then.
func flagsAlone(start func() error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.Args().Present() {
			return misconfigured(fmt.Errorf("unexpected argument %q; allowed: flags alone, see --help. What follows it was not read. "+
				"A flag that takes no value is turned off as --FLAG=false", c.Args().First()))
		}
		return start()
	}
}

// api completes what the flags say about the API. An empty address means nodeapi.Unix.
func (c *PreparerConfig) api() nodeapi.Config {
	api := c.API
	api.Node, api.Addr, api.Advertise = c.Node, cmp.Or(api.Addr, nodeapi.Unix), c.Address
	return api
}

func checkArtifacts(errs *field.Errors, c *artifact.Config) {
	size := func(name string, value, least int64, allowed string) {
		if value < least {
			errs.Add(name, value, allowed)
		}
	}
	length := func(name string, value time.Duration) {
		if value < time.Second {
			errs.Add(name, value.String(), "a length of time of 1s or more")
		}
	}
	size("artifact-cache-bytes", c.CacheBytes, 1, "a number of bytes, 1 or more") // artifact's zero is its default
	size("artifact-max-bytes", c.MaxBytes, 1, "a number of bytes, 1 or more")
	size("artifact-max-unpacked-bytes", c.MaxUnpackedBytes, 1, "a number of bytes, 1 or more")
	size("artifact-reserve-bytes", c.ReserveBytes, 0, "a number of bytes, 0 (none) or more")
	length("artifact-timeout", c.FetchTimeout)
	length("artifact-stall-timeout", c.StallTimeout)
}
