// Package nodeapi serves logs of a node's pods, commands in pods, and scale requests over HTTP. A user of the API can
// do everything that the pods can do. So by default only root and the preparer's own user can connect. Others need a
// configured address and a token (ADR 15).
package nodeapi

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/listen"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// DefaultStreams is how many requests about pods are served at the same time. Such requests can last for days, so scale
// requests have their own limit.
const DefaultStreams = 32

const maxScales = 8 // scale requests that are served at the same time

// minToken is in bytes.
const minToken = 16

// The time of an answer is not limited, because a client can follow a log for days.
const (
	spareConns     = 256             // open connections, besides those whose requests are served
	refusalLimit   = 5 * time.Second // how long the client may take to read a refusal
	headerTimeout  = 10 * time.Second
	idleTimeout    = time.Minute // of a connection between two requests
	maxHeaderBytes = 256 << 10
	endLimit       = time.Second // for requests under way when the preparer ends
)

// askHeader must be in every request about a pod. Pages in a browser cannot send it to another site without permission.
const askHeader = "Rcfarm-Api"

// Pods is the part of the preparer that the server needs.
type Pods interface {
	// LogFiles returns a pod's log files by the names of its present and former processes. more: the pod may still
	// write to them.
	LogFiles(id pod.Identity) (files map[string]string, more bool)
	// Command returns a function that runs a command beside a process of the pod; "": the first one.
	Command(id pod.Identity, process string, argv []string) (runtime.Command, error)
	// Scale carries out a request. It returns an error of package scale, or an error about the node itself.
	Scale(ctx context.Context, r scale.Request) (scale.Response, error)
}

// Config is what New needs.
type Config struct {
	Node      string
	Addr      string // Unix, Off, or host:port; with port 0, a free port is taken
	Dir       string // for the socket
	Advertise string // host by which clients reach this node, if Addr has no host
	TokenFile string // file with the token that requests must have; only for host:port, and required there
	CertFile  string // with KeyFile: certificate for TLS; required unless host is loopback
	KeyFile   string
	Streams   int // requests about pods served at the same time; zero: DefaultStreams
	Log       obs.Logger
}

// Server answers requests about the node's pods.
type Server struct {
	cfg      Config
	pods     Pods
	listener net.Listener  // nil if the server is off
	slots    chan struct{} // tokens of requests about pods
	scales   chan struct{} // tokens of scale requests
}

// New listens at the address, so that a wrong configuration is an error at the start. If Run is not called, Close
// closes the listener.
func New(ctx context.Context, cfg Config) (*Server, error) {
	var errs field.Errors
	cfg.Check(&errs)
	if err := errs.Err(); err != nil {
		return nil, err
	}
	if cfg.Streams == 0 {
		cfg.Streams = DefaultStreams
	}
	s := &Server{cfg: cfg, slots: make(chan struct{}, cfg.Streams), scales: make(chan struct{}, maxScales)}
	if cfg.Addr == Off {
		return s, nil
	}
	if cfg.TokenFile != "" {
		if _, err := readToken(cfg.TokenFile); err != nil {
			return nil, fmt.Errorf("api-token-file: %w", err)
		}
	}
	if cfg.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile); err != nil {
			return nil, fmt.Errorf("api-tls-cert: %w", err)
		}
	}
	var err error
	if s.listener, err = cfg.open(ctx); err != nil {
		return nil, fmt.Errorf("api-addr: %w; name another with --api-addr, or \"off\"", err)
	}
	return s, nil
}

// Close closes the listener of a server whose Run was not called. After Run it does nothing.
func (s *Server) Close() {
	if s.listener != nil {
		_ = s.listener.Close() // errors do not matter, because the next preparer replaces the socket
	}
}

// Run serves requests until ctx ends, and returns when no request is under way any more.
func (s *Server) Run(ctx context.Context, pods Pods) error {
	if s.listener == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	s.pods = pods
	srv := &http.Server{
		Handler: s.handler(), MaxHeaderBytes: maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: listen.Context,
	}
	limited := listen.Limit(s.listener, s.cfg.Streams+maxScales+spareConns)
	s.cfg.Log.WithField(obs.Address, s.URL()).Info("node API listens")
	if s.cfg.CertFile != "" {
		// Read for each connection, because certificates are renewed while the preparer runs.
		srv.TLSConfig = &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				pair, err := tls.LoadX509KeyPair(s.cfg.CertFile, s.cfg.KeyFile)
				return &pair, err
			},
		}
	}
	if err := listen.Serve(ctx, srv, limited, endLimit); err != nil {
		return fmt.Errorf("node API: %w", err)
	}
	return context.Cause(ctx)
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	const pods = "/v1/nodes/{node}/pods/{rc}/{role}/{index}/"
	mux.HandleFunc("GET "+pods+"logs", s.forPod(s.logs))
	mux.HandleFunc("POST "+pods+"exec", s.forPod(s.exec))
	mux.HandleFunc("POST "+scale.Path, s.scale)
	return mux
}

func (s *Server) forPod(serve func(http.ResponseWriter, *http.Request, pod.Identity)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(askHeader) == "" {
			refuse(w, "the header "+askHeader+" is missing", http.StatusBadRequest)
			return
		}
		if status, why := s.known(r, r.PathValue("node")); why != "" {
			refuse(w, why, status)
			return
		}
		index, err := strconv.Atoi(r.PathValue("index"))
		if err != nil || index < 0 {
			refuse(w, fmt.Sprintf("index: %q is not valid; allowed: a number, zero or more", r.PathValue("index")),
				http.StatusBadRequest)
			return
		}
		over, why := s.slot(r, s.slots)
		if why != "" {
			refuse(w, why, http.StatusTooManyRequests)
			return
		}
		defer over()
		serve(w, r, pod.Identity{RCID: r.PathValue("rc"), Role: r.PathValue("role"), Index: index})
	}
}

// slot takes a slot until over is called. If no slot is free, it returns why.
func (s *Server) slot(r *http.Request, slots chan struct{}) (over func(), why string) {
	select {
	case slots <- struct{}{}:
	default:
		return nil, fmt.Sprintf("the preparer of %s serves %d requests already; try again later",
			s.cfg.Node, cap(slots))
	}
	served := listen.Serving(r.Context())
	return func() { served(); <-slots }, ""
}

func refuse(w http.ResponseWriter, why string, status int) {
	hangUp(w)
	http.Error(w, why, status)
}

// hangUp closes the connection after the client has read a refusal.
func hangUp(w http.ResponseWriter) {
	answer, end := http.NewResponseController(w), time.Now().Add(refusalLimit)
	_ = errors.Join(answer.SetReadDeadline(end), answer.SetWriteDeadline(end)) // then it is closed in any case
	w.Header().Set("Connection", "close")
}

// known returns why a request is refused, or "".
func (s *Server) known(r *http.Request, node string) (status int, why string) {
	if s.cfg.TokenFile != "" {
		want, err := readToken(s.cfg.TokenFile)
		if err != nil {
			s.cfg.Log.WithError(err).Warn("the token of the node API cannot be read; all requests are refused")
			return http.StatusServiceUnavailable, "the preparer cannot read its token; its log says why"
		}
		got, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		// The sums have equal lengths, so the time of the comparison does not depend on the token.
		wantSum, gotSum := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(got))
		if subtle.ConstantTimeCompare(wantSum[:], gotSum[:]) != 1 || !bearer {
			return http.StatusUnauthorized, "the token is missing or wrong"
		}
	}
	if node != s.cfg.Node {
		return http.StatusMisdirectedRequest, fmt.Sprintf("this is the preparer of node %s, not of %s", s.cfg.Node,
			node)
	}
	return 0, ""
}

// readToken is called for each request, so that the token can be changed.
func readToken(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if len(token) < minToken || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("%s: %d characters; allowed: one word of at least %d", file, len(token), minToken)
	}
	return token, nil
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request, id pod.Identity) {
	q := r.URL.Query()
	lines := -1
	if text := q.Get(paramTail); text != "" {
		var err error
		if lines, err = strconv.Atoi(text); err != nil || lines < 0 {
			http.Error(w, fmt.Sprintf("tail: %q is not valid; allowed: a number of lines, zero or more", text),
				http.StatusBadRequest)
			return
		}
	}
	files, _ := s.pods.LogFiles(id)
	tails, status, why := tailsOf(files, q.Get(paramProcess))
	if why != "" {
		http.Error(w, fmt.Sprintf("pod %s: %s", id, why), status)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	buffer := bufio.NewWriter(w)
	flush := func() error {
		if buffer.Buffered() == 0 {
			return nil
		}
		return errors.Join(buffer.Flush(), http.NewResponseController(w).Flush())
	}
	following, previous := q.Get(paramFollow) != "", q.Get(paramPrevious) != ""
	printed := false
	for _, t := range tails {
		t.printer.to = buffer
		err := t.begin(previous, lines)
		if errors.Is(err, errNoPrevious) && len(tails) > 1 {
			continue
		}
		if err == nil && !following {
			err = t.printer.flush()
		}
		if err != nil && !printed && buffer.Buffered() == 0 {
			http.Error(w, fmt.Sprintf("log of pod %s: %v", id, err), http.StatusConflict)
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // aborts the connection, so that the client sees an error
		}
		printed = true
	}
	if following {
		_ = http.NewResponseController(w).Flush() // sends the headers now, because the first output may come late
		more := func() bool {
			_, more := s.pods.LogFiles(id)
			return more
		}
		if follow(r.Context(), tails, more, flush) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	_ = flush() // fails if the client is gone
}

// tailsOf returns the logs of the named process, or of all. With several logs, each line gets the process's name.
func tailsOf(files map[string]string, process string) (tails []*tail, status int, why string) {
	names := slices.Sorted(maps.Keys(files))
	if len(names) == 0 {
		return nil, http.StatusNotFound, "it has no logs on this node"
	}
	if process != "" {
		path, ok := files[process]
		if !ok {
			return nil, http.StatusNotFound, fmt.Sprintf("process: %q is not valid; allowed: %s", process,
				strings.Join(names, ", "))
		}
		return []*tail{{path: path}}, 0, ""
	}
	// Logs whose names begin with '_' are written by the node.
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "_") })
	for _, name := range names {
		t := &tail{path: files[name]}
		if len(names) > 1 {
			t.printer.prefix = "[" + name + "] "
		}
		tails = append(tails, t)
	}
	return tails, 0, ""
}
