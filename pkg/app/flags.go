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

// Each function makes one kind of flag, which stores its value, or the default, in *to.

func textFlag(to *string, name, value, usage string) cli.Flag {
	return &cli.StringFlag{Name: name, Usage: usage, Value: value, Destination: to}
}

func timeFlag(to *time.Duration, name string, value time.Duration, usage string) cli.Flag {
	return &cli.DurationFlag{Name: name, Usage: usage, Value: value, Destination: to}
}

func amountFlag(to *int64, name string, value int64, usage string) cli.Flag {
	return &cli.Int64Flag{Name: name, Usage: usage, Value: value, Destination: to}
}

func countFlag(to *int, name string, value int, usage string) cli.Flag {
	return &cli.IntFlag{Name: name, Usage: usage, Value: value, Destination: to}
}

func boolFlag(to *bool, name string, value bool, usage string) cli.Flag {
	return &cli.BoolFlag{Name: name, Usage: usage, Value: value, Destination: to}
}

// commonFlags returns the flags of all daemons, bound to c.
func commonFlags(c *Common, dataDir, debugAddr string) []cli.Flag {
	return []cli.Flag{
		textFlag(&c.ConsulAddr, "consul-addr", "",
			"`ADDRESS` of the local Consul agent (default: CONSUL_HTTP_ADDR, else 127.0.0.1:8500)"),
		textFlag(&c.TokenFile, "token-file", "",
			"`FILE` with the Consul ACL token, read again when it changes (default: CONSUL_HTTP_TOKEN_FILE, else "+
				"CONSUL_HTTP_TOKEN)"),
		&cli.StringFlag{
			Name: "prefix", Usage: "key prefix of everything in Consul",
			Value: store.DefaultPrefix, EnvVars: []string{"RCFARM_PREFIX"}, Destination: &c.Prefix,
		},
		timeFlag(&c.TTL, "ttl", consul.DefaultTTL,
			"how long this daemon may be silent before others take it for dead, 1s to 1m"),
		textFlag(&c.DataDir, "data-dir", dataDir, "`DIRECTORY` for this daemon alone"),
		textFlag(&c.LogLevel, "log-level", "info", "debug, info, warning or error"),
		textFlag(&c.LogFormat, "log-format", "text", "text or json"),
		textFlag(&c.DebugAddr, "debug-addr", debugAddr,
			"`ADDRESS` for /metrics, /healthz, /readyz and /debug/pprof; port 0: a free one, which is in the log; "+
				"off: none"),
		boolFlag(&c.DebugPublic, "debug-public", false, "allow a debug address that other machines can reach"),
		textFlag(&c.EmulationVersion, "emulation-version", "",
			"write no records of a later `VERSION`, so that the previous version can be started again: see "+
				"docs/compatibility.md (default: the newest that this program knows)"),
		// Hidden, because all pods end when the lifeline breaks.
		&cli.StringFlag{
			Name: "lifeline", Usage: "pipe of a development cluster to end with",
			Hidden: true, Destination: &c.Lifeline,
		},
	}
}

// flagsAlone returns the action of a command that takes only flags. After an argument, the library ignores all flags,
// such as --data-dir, so the daemon does not start then.
func flagsAlone(start func() error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.Args().Present() {
			return misconfigured(fmt.Errorf("unexpected argument %q; allowed: only flags, see --help. Flags after it "+
				"were not read. To turn off a flag that takes no value: --FLAG=false", c.Args().First()))
		}
		return start()
	}
}

func (p *PreparerConfig) api() nodeapi.Config {
	api := p.API
	api.Node, api.Addr, api.Advertise = p.Node, cmp.Or(api.Addr, nodeapi.Unix), p.Address
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
	size("artifact-cache-bytes", c.CacheBytes, 1, "a number of bytes, 1 or more") // zero means its default there
	size("artifact-max-bytes", c.MaxBytes, 1, "a number of bytes, 1 or more")
	size("artifact-max-unpacked-bytes", c.MaxUnpackedBytes, 1, "a number of bytes, 1 or more")
	size("artifact-reserve-bytes", c.ReserveBytes, 0, "a number of bytes, 0 (none) or more")
	length("artifact-timeout", c.FetchTimeout)
	length("artifact-stall-timeout", c.StallTimeout)
}
