package app

import (
	"cmp"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/artifact"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/runtime/oneshot"
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
		&cli.DurationFlag{Name: "ttl", Usage: "how long this daemon may be silent before others act, 1s to 1m", Value: consul.DefaultTTL, Destination: &c.TTL},
		&cli.StringFlag{Name: "data-dir", Usage: "`DIRECTORY` for this daemon alone", Value: dataDir, Destination: &c.DataDir},
		&cli.StringFlag{Name: "log-level", Usage: "debug, info, warning or error", Value: "info", Destination: &c.LogLevel},
		&cli.StringFlag{Name: "log-format", Usage: "text or json", Value: "text", Destination: &c.LogFormat},
		&cli.StringFlag{Name: "debug-addr", Usage: "`ADDRESS` for /metrics, /healthz, /readyz and /debug/pprof; port 0: a free one, which the log says; off: none", Value: debugAddr, Destination: &c.DebugAddr},
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

// APIFlags returns the flags of a preparer about its API, bound to c.
func APIFlags(c *nodeapi.Config) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "api-addr", Usage: "`ADDRESS` of the API for logs and commands in pods: unix (api/socket in the data directory, for root and the preparer's own user), off, or an IP address and a port (0: a free one), which needs a token, and beyond loopback TLS. The node's record says where", Value: nodeapi.Unix, Destination: &c.Addr},
		&cli.StringFlag{Name: "api-token-file", Usage: "`FILE` with the token that requests must bear, one word of at least 16 characters, read anew for each request; with an address and a port, and only then", Destination: &c.TokenFile},
		&cli.StringFlag{Name: "api-tls-cert", Usage: "`FILE` with the certificate of the API, in PEM, that names the node; read anew for each connection; needed beyond loopback (default: plain HTTP)", Destination: &c.CertFile},
		&cli.StringFlag{Name: "api-tls-key", Usage: "`FILE` with the key of that certificate, in PEM", Destination: &c.KeyFile},
	}
}

// api completes what the flags say about the API. An empty address means nodeapi.Unix.
func (c *PreparerConfig) api() nodeapi.Config {
	api := c.API
	api.Node, api.Addr, api.Advertise, api.Run = c.Node, cmp.Or(api.Addr, nodeapi.Unix), c.Address, oneshot.Runner{}.Run
	return api
}

// ArtifactFlags returns the flags of a preparer about artifacts, bound to c.
func ArtifactFlags(c *artifact.Config) []cli.Flag {
	return []cli.Flag{
		&cli.Int64Flag{Name: "artifact-cache-bytes", Usage: "beyond this, artifacts that no installed version needs are removed, the least recently used first; 1 or more", Value: artifact.DefaultCacheBytes, Destination: &c.CacheBytes},
		&cli.Int64Flag{Name: "artifact-reserve-bytes", Usage: "free disk space that fetching and unpacking leave; 0: none", Value: artifact.DefaultReserveBytes, Destination: &c.ReserveBytes},
		&cli.Int64Flag{Name: "artifact-max-bytes", Usage: "largest archive that is fetched, 1 or more", Value: artifact.DefaultMaxBytes, Destination: &c.MaxBytes},
		&cli.Int64Flag{Name: "artifact-max-unpacked-bytes", Usage: "most that an archive may unpack to, 1 or more", Value: artifact.DefaultMaxUnpackedBytes, Destination: &c.MaxUnpackedBytes},
		&cli.DurationFlag{Name: "artifact-timeout", Usage: "for one whole fetch with its retries, 1s or more", Value: artifact.DefaultFetchTimeout, Destination: &c.FetchTimeout},
		&cli.DurationFlag{Name: "artifact-stall-timeout", Usage: "a server that sends less than 64 KiB in this time is given up, and tried again; 1s or more", Value: artifact.DefaultStallTimeout, Destination: &c.StallTimeout},
	}
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

// artifactsIn returns the configuration of the artifacts in a directory. Flags leave ReserveBytes zero for none, which is artifact's default.
func artifactsIn(dir string, c artifact.Config) artifact.Config {
	c.Dir, c.ReserveBytes = dir, cmp.Or(c.ReserveBytes, -1)
	return c
}
