package app

import (
	"cmp"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/runtime/oneshot"
)

// APIFlags returns the flags of a preparer about its API, bound to c.
func APIFlags(c *nodeapi.Config) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "api-addr", Usage: "`ADDRESS` of the API for logs and commands in pods: unix (a socket in the data directory), host:port (port 0: a free one), or off", Value: nodeapi.Unix, Destination: &c.Addr},
		&cli.StringFlag{Name: "api-token-file", Usage: "`FILE` with the token that requests must bear; needed with host:port", Destination: &c.TokenFile},
		&cli.StringFlag{Name: "api-tls-cert", Usage: "`FILE` with the certificate of the API, in PEM; read anew for each connection. It must name the node; needed beyond loopback", Destination: &c.CertFile},
		&cli.StringFlag{Name: "api-tls-key", Usage: "`FILE` with the key of that certificate, in PEM", Destination: &c.KeyFile},
	}
}

// api completes what the flags say about the API. An empty address means nodeapi.Unix.
func (c *PreparerConfig) api() nodeapi.Config {
	api := c.API
	api.Node, api.Addr, api.Advertise, api.Run = c.Node, cmp.Or(api.Addr, nodeapi.Unix), c.Address, oneshot.Runner{}.Run
	return api
}
