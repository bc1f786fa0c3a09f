package obs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/listen"
)

// DebugOff is the address that means: no debug server.
const DebugOff = "off"

// Limits of the debug server, because any user of the machine may use it.
const (
	debugConns         = 256 // open at once
	debugHeaderTimeout = 5 * time.Second
	debugIdleTimeout   = 30 * time.Second // of a connection between two requests
	debugLimit         = 10 * time.Second // of one request and its answer, without the time of a profile
	debugMaxProfile    = 5 * time.Minute  // longest time of a profile
	debugProfiles      = 2                // profiles that are made at once
	debugEndLimit      = time.Second      // how long requests under way may still take when the daemon ends
)

// DebugConfig configures a daemon's debug server.
type DebugConfig struct {
	Addr     string // host:port (port 0 means a free port), or DebugOff
	Public   bool   // allow an address that other machines can reach
	Gatherer prometheus.Gatherer
	// Ready returns why the daemon does not do its work; nil: it does. It is called for each request.
	Ready func() error
	Log   Logger
}

// CheckDebugAddr adds a mistake if the address is not allowed.
func CheckDebugAddr(errs *field.Errors, addr string, public bool) {
	if addr == DebugOff {
		return
	}
	host, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	ip := net.ParseIP(host)
	switch {
	case err != nil || ip == nil && host != "localhost" && (host != "" || !public):
		errs.Add("debug-addr", addr,
			`an IP address and a port such as "127.0.0.1:7460", port 0 for a free one, or "off"`)
	case !public && host != "localhost" && !ip.IsLoopback():
		errs.Add("debug-addr", addr, "a loopback address: profiles and metrics are shown without asking who reads "+
			"them; --debug-public allows others")
	}
}

// DebugServer answers /metrics, /healthz, /readyz and /debug/pprof/.
type DebugServer struct {
	cfg      DebugConfig
	listener net.Listener // nil if the server is off
}

// NewDebugServer listens, so that a wrong address is an error at the start. If Run is never called, call Close.
func NewDebugServer(ctx context.Context, cfg DebugConfig) (*DebugServer, error) {
	var errs field.Errors
	CheckDebugAddr(&errs, cfg.Addr, cfg.Public)
	if err := errs.Err(); err != nil {
		return nil, err
	}
	s := &DebugServer{cfg: cfg}
	if cfg.Addr == DebugOff {
		return s, nil
	}
	var err error
	if s.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", cfg.Addr); err != nil {
		return nil, fmt.Errorf("debug-addr: %w; name another with --debug-addr, or \"off\"", err)
	}
	return s, nil
}

// Addr returns the address in use; "" if the server is off.
func (d *DebugServer) Addr() string {
	if d.listener == nil {
		return ""
	}
	return d.listener.Addr().String()
}

// Close closes the listener if Run was never called.
func (d *DebugServer) Close() {
	if d.listener != nil {
		_ = d.listener.Close() // a second close does not matter
	}
}

// Run serves until ctx ends, and for requests under way at most debugEndLimit longer.
func (d *DebugServer) Run(ctx context.Context) error {
	if d.listener == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	srv := &http.Server{
		Handler: limitTime(d.handler()), ReadHeaderTimeout: debugHeaderTimeout,
		IdleTimeout: debugIdleTimeout, ConnContext: listen.Context,
	}
	d.cfg.Log.WithField(Address, d.Addr()).Info("debug server listens")
	if err := listen.Serve(ctx, srv, listen.Limit(d.listener, debugConns), debugEndLimit); err != nil {
		return fmt.Errorf("debug server: %w", err)
	}
	return context.Cause(ctx)
}

func (d *DebugServer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(d.cfg.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := d.cfg.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	slots := make(chan struct{}, debugProfiles)
	for path, profile := range map[string]http.HandlerFunc{
		"": pprof.Index, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
	} {
		mux.HandleFunc("/debug/pprof/"+path, func(w http.ResponseWriter, r *http.Request) {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				profile(w, r)
			default:
				w.Header().Set("Connection", "close")
				http.Error(w, fmt.Sprintf("%d profiles are being made already; try again later", debugProfiles),
					http.StatusTooManyRequests)
			}
		})
	}
	return mux
}

// limitTime bounds how long a request may take, because no client may hold a connection for ever.
func limitTime(serve http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer listen.Serving(r.Context())()
		limit := debugLimit
		if text := r.URL.Query().Get("seconds"); text != "" {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil || !(seconds >= 0 && seconds <= debugMaxProfile.Seconds()) {
				w.Header().Set("Connection", "close")
				http.Error(w, fmt.Sprintf("seconds: %q is not valid; allowed: 0 to %.0f", text,
					debugMaxProfile.Seconds()), http.StatusBadRequest)
				return
			}
			limit += time.Duration(seconds * float64(time.Second))
		} else if strings.HasSuffix(r.URL.Path, "/profile") {
			limit += 30 * time.Second // the default of pprof
		}
		answer, end := http.NewResponseController(w), time.Now().Add(limit)
		if err := errors.Join(answer.SetReadDeadline(end), answer.SetWriteDeadline(end)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		serve.ServeHTTP(w, r)
	})
}

// NewRegistry returns a registry with metrics of the process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
