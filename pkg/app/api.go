package app

import (
	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/nodeapi"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/runtime/oneshot"
)

// PreparerAPIAddr is where a preparer's API listens unless it is told otherwise: the node's record says at which port.
const PreparerAPIAddr = "127.0.0.1:0"

// APIConfig is what a preparer is told about its HTTP API. An empty address means PreparerAPIAddr.
type APIConfig struct {
	Addr      string
	TokenFile string
	CertFile  string
	KeyFile   string
}

// APIFlags returns the flags of a preparer about its API, bound to c.
func APIFlags(c *APIConfig) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "api-addr", Usage: "`ADDRESS` of the API for logs and commands in pods; port 0: a free one; off: none", Value: PreparerAPIAddr, Destination: &c.Addr},
		&cli.StringFlag{Name: "api-token-file", Usage: "`FILE` with the token that requests must bear; needed where the address is no loopback one", Destination: &c.TokenFile},
		&cli.StringFlag{Name: "api-tls-cert", Usage: "`FILE` with the certificate of the API, in PEM; read anew for each connection", Destination: &c.CertFile},
		&cli.StringFlag{Name: "api-tls-key", Usage: "`FILE` with the key of that certificate, in PEM", Destination: &c.KeyFile},
	}
}

func (c *APIConfig) config(node, address string, log obs.Logger) nodeapi.Config {
	addr := c.Addr
	if addr == "" {
		addr = PreparerAPIAddr
	}
	return nodeapi.Config{
		Node: node, Addr: addr, Advertise: address, TokenFile: c.TokenFile, CertFile: c.CertFile, KeyFile: c.KeyFile, Log: log,
		Run: oneshot.Runner{}.Run,
	}
}
