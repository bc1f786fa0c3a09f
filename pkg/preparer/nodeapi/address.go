package nodeapi

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/listen"
)

// Values of Config.Addr that are no network addresses.
const (
	Unix = "unix" // the socket in Config.Dir
	Off  = "off"  // no API
)

const schemeUnix = "unix"

// Only root and the preparer's user can enter the directory socketDir.
const (
	socketDir  = "api"
	socketName = "socket"
)

// Check adds mistakes in the configuration to errs.
func (c Config) Check(errs *field.Errors) {
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs.Add("api-tls-cert", c.CertFile, "given together with --api-tls-key")
	}
	if c.Addr == Off || c.Addr == Unix {
		const nothing = "nothing, unless --api-addr is an IP address and a port: a socket asks for no token, but who " +
			"connects"
		if c.TokenFile != "" {
			errs.Add("api-token-file", c.TokenFile, nothing)
		}
		if c.CertFile != "" {
			errs.Add("api-tls-cert", c.CertFile, nothing)
		}
		return
	}
	host, port, err := net.SplitHostPort(c.Addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	switch {
	case err != nil || net.ParseIP(host) == nil && host != "" && host != "localhost":
		errs.Add("api-addr", c.Addr,
			`"unix", an IP address and a port such as "127.0.0.1:7462", port 0 for a free one, or "off"`)
	case c.TokenFile == "":
		errs.Add("api-addr", c.Addr,
			`"unix", unless --api-token-file names a file with a token that requests must bear`)
	case !loopback(host) && c.CertFile == "":
		errs.Add("api-addr", c.Addr,
			"a loopback address, unless --api-tls-cert and --api-tls-key keep the token secret")
	}
}

// Pushable returns why farms cannot push to the node through this API, or "" if they can.
func (c Config) Pushable() string {
	if c.Addr == Unix || c.Addr == Off || c.TokenFile == "" || c.CertFile == "" {
		return "farms reach it by an address, a token and TLS: --api-addr HOST:PORT, --api-token-file, " +
			"--api-tls-cert and --api-tls-key"
	}
	return ""
}

func loopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

func (c Config) open(ctx context.Context) (net.Listener, error) {
	if c.Addr != Unix {
		return new(net.ListenConfig).Listen(ctx, "tcp", c.Addr)
	}
	path := c.socket()
	err := listen.CheckSocket(path)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = os.Chmod(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return nil, err
	}
	l, err := listen.Socket(path)
	if err != nil {
		return nil, err
	}
	return listen.Own(l), nil
}

func (c Config) socket() string { return filepath.Join(c.Dir, socketDir, socketName) }

// URL returns the URL of the server for clients, or "" if the server is off.
func (s *Server) URL() string {
	if s.listener == nil {
		return ""
	}
	if s.cfg.Addr == Unix {
		return (&url.URL{Scheme: schemeUnix, Path: s.cfg.socket()}).String()
	}
	host, port, _ := net.SplitHostPort(s.listener.Addr().String()) // valid, because it comes from the listener
	if ip := net.ParseIP(host); ip.IsUnspecified() {
		host = s.cfg.Advertise
	}
	scheme := "http"
	if s.cfg.CertFile != "" {
		scheme = "https"
	}
	return (&url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)}).String()
}

// Target is the address of a node's API, from the node's record.
type Target struct{ url *url.URL }

// ParseTarget parses a URL from Server.URL. It accepts only paths of sockets that a preparer makes.
func ParseTarget(text string) (Target, error) {
	u, err := url.Parse(text)
	isSocket := err == nil && u.Scheme == schemeUnix && u.Host == "" && filepath.Clean(u.Path) == u.Path &&
		filepath.IsAbs(u.Path) && filepath.Base(u.Path) == socketName &&
		filepath.Base(filepath.Dir(u.Path)) == socketDir
	isHTTP := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
	if !isSocket && !isHTTP {
		return Target{}, fmt.Errorf("api: %q is not valid; allowed: a URL such as "+
			"unix:///var/lib/rcfarm/preparer/api/socket or https://10.0.3.17:7462", text)
	}
	return Target{u}, nil
}

// Socket returns the path of the socket, or "".
func (t Target) Socket() string {
	if t.url.Scheme == schemeUnix {
		return t.url.Path
	}
	return ""
}

// Host returns the host and port, or "" for a socket.
func (t Target) Host() string { return t.url.Host }

// Loopback reports whether the host is a loopback address, which leads to the client's own machine.
func (t Target) Loopback() bool { return loopback(t.url.Hostname()) }

// Secure reports whether connections use TLS.
func (t Target) Secure() bool { return t.url.Scheme == "https" }

// InClear reports whether a token would be sent over a network without encryption.
func (t Target) InClear() bool { return t.Host() != "" && t.url.Scheme != "https" && !t.Loopback() }

func (t Target) base() string {
	if t.Socket() != "" {
		return "http://socket" // a placeholder for the host, which is not looked up
	}
	return t.url.Scheme + "://" + t.url.Host
}

// client: for TLS, the certificate must have the node's name, not the host of the URL. Otherwise somebody who can write
// a node's record could direct requests to another machine.
func (t Target) client(node string, tlsConfig *tls.Config) *http.Client {
	tlsConfig = tlsConfig.Clone()
	tlsConfig.MinVersion, tlsConfig.ServerName = tls.VersionTLS12, node
	transport := &http.Transport{TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	if path := t.Socket(); path != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return listen.Dial(ctx, path)
		}
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
