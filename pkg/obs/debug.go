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

// DebugOff is the address that means that there is no debug server.
const DebugOff = "off"

// Limits of the debug server: whoever is on the machine may ask it.
const (
	debugConns         = 64 // open at once
	debugHeaderTimeout = 5 * time.Second
	debugIdleTimeout   = 30 * time.Second // of a connection between two requests
	debugLimit         = 10 * time.Second // of one request and its answer, besides what a profile was asked to take
	debugMaxProfile    = 5 * time.Minute  // what a profile may be asked to take
	debugProfiles      = 2                // made at once
	debugEndLimit      = time.Second      // how long requests under way may take when the daemon ends
)

// DebugConfig says what a daemon shows of itself.
type DebugConfig struct {
	Addr     string // host:port, port 0 for a free one, or DebugOff
	Public   bool   // allow an address that other machines can reach
	Gatherer prometheus.Gatherer
	// Ready returns nil when the daemon does its work, or why it does not. It is called for each request.
	Ready func() error
	Log   Logger
}

// CheckDebugAddr records what is wrong with the address of a debug server.
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
		errs.Add("debug-addr", addr, `an IP address and a port such as "127.0.0.1:7460", port 0 for a free one, or "off"`)
	case !public && host != "localhost" && !ip.IsLoopback():
		errs.Add("debug-addr", addr, "a loopback address: profiles and metrics are shown without asking who reads them; --debug-public allows others")
	}
}

// DebugServer answers /metrics, /healthz, /readyz and /debug/pprof/.
type DebugServer struct {
	cfg      DebugConfig
	listener net.Listener // nil when it is off
}

// NewDebugServer opens the address, so that a mistake shows at the start. Run serves it, Close gives it up.
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

// Addr returns the address in use, "" when the server is off.
func (s *DebugServer) Addr() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Close gives the address up. It is for a server that Run was never called on, and harmless otherwise.
func (s *DebugServer) Close() {
	if s.listener != nil {
		_ = s.listener.Close() // a second closing is no news
	}
}

// Run serves until ctx ends and returns when no request is under way any more.
func (s *DebugServer) Run(ctx context.Context) error {
	if s.listener == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	srv := &http.Server{Handler: limitTime(s.handler()), ReadHeaderTimeout: debugHeaderTimeout, IdleTimeout: debugIdleTimeout, ConnContext: listen.Context}
	s.cfg.Log.WithField(Address, s.Addr()).Info("debug server listens")
	if err := listen.Serve(ctx, srv, listen.Limit(s.listener, debugConns), debugEndLimit); err != nil {
		return fmt.Errorf("debug server: %w", err)
	}
	return context.Cause(ctx)
}

func (s *DebugServer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.cfg.Ready(); err != nil {
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
				http.Error(w, fmt.Sprintf("%d profiles are being made already; try again later", debugProfiles), http.StatusTooManyRequests)
			}
		})
	}
	return mux
}

// limitTime bounds how long a request may take, so that nobody can hold a connection for good.
func limitTime(serve http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer listen.Serving(r.Context())()
		limit := debugLimit
		if text := r.URL.Query().Get("seconds"); text != "" {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil || !(seconds >= 0 && seconds <= debugMaxProfile.Seconds()) {
				w.Header().Set("Connection", "close")
				http.Error(w, fmt.Sprintf("seconds: %q is not valid; allowed: 0 to %.0f", text, debugMaxProfile.Seconds()), http.StatusBadRequest)
				return
			}
			limit += time.Duration(seconds * float64(time.Second))
		} else if strings.HasSuffix(r.URL.Path, "/profile") {
			limit += 30 * time.Second // what pprof takes where nothing is said
		}
		answer, end := http.NewResponseController(w), time.Now().Add(limit)
		if err := errors.Join(answer.SetReadDeadline(end), answer.SetWriteDeadline(end)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		serve.ServeHTTP(w, r)
	})
}

// NewRegistry returns a registry with what every daemon shows about its process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
