package obs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/obs"
)

func TestMain(m *testing.M) { os.Exit(consultest.NoLeaks(m.Run())) }

func quiet(t *testing.T) obs.Logger {
	t.Helper()
	log, err := obs.NewLogger(io.Discard, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// fetch returns the status and body of a page.
func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestDebugServer(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	errDone := errors.New("done")
	s, err := obs.NewDebugServer(t.Context(), obs.DebugConfig{
		Addr: "127.0.0.1:0", Gatherer: obs.NewRegistry(), Log: quiet(t),
		Ready: func() error {
			if ready.Load() {
				return nil
			}
			return errors.New("no session yet")
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	base := "http://" + s.Addr()
	for path, want := range map[string]string{
		"/healthz": "ok", "/metrics": "go_goroutines", "/debug/pprof/": "goroutine",
	} {
		if status, body := fetch(t, base+path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: status %d, no %q in %.200s", path, status, want, body)
		}
	}
	// Other users of the machine cannot see the arguments of a daemon.
	if status, body := fetch(t, base+"/debug/pprof/cmdline"); status != http.StatusNotFound ||
		strings.Contains(body, "obs.test") {
		t.Errorf("/debug/pprof/cmdline: status %d, %.200s", status, body)
	}
	if status, body := fetch(t, base+"/readyz"); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "no session yet") {
		t.Errorf("/readyz before: %d %s", status, body)
	}
	ready.Store(true)
	if status, _ := fetch(t, base+"/readyz"); status != http.StatusOK {
		t.Errorf("/readyz: %d", status)
	}
	cancel(errDone)
	if err := <-ended; !errors.Is(err, errDone) {
		t.Errorf("Run returned %v", err)
	}
	var again *obs.DebugServer
	consultest.Eventually(t, time.Minute, func() (err error) { // another program may have had the port for a moment
		again, err = obs.NewDebugServer(t.Context(), obs.DebugConfig{Addr: s.Addr()})
		return err
	})
	defer again.Close()
	if _, err := obs.NewDebugServer(t.Context(), obs.DebugConfig{Addr: s.Addr()}); err == nil ||
		!strings.Contains(err.Error(), "--debug-addr") {
		t.Errorf("an address in use: %v", err)
	}
}

// Many connections, half requests or many profiles of one client do not keep other clients from getting answers.
func TestDebugServerUnderSiege(t *testing.T) {
	t.Parallel()
	s, err := obs.NewDebugServer(t.Context(),
		obs.DebugConfig{
			Addr: "127.0.0.1:0", Gatherer: obs.NewRegistry(), Log: quiet(t),
			Ready: func() error { return nil },
		})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	const patience = 30 * time.Second
	dial := func(text string) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", s.Addr())
		if err == nil {
			_, err = io.WriteString(c, text)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	first := dial("GET /metrics HT")
	for i := range 500 {
		dial([]string{
			"", "GET /metrics HTTP/1.1\r\nHost: x\r\n",
			"GET /debug/pprof/heap?seconds=60 HTTP/1.1\r\nHost: x\r\n\r\n",
		}[i%3])
	}
	if err := first.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first of 500 connections is still open: %v", err)
	}
	base := "http://" + s.Addr()
	for path, want := range map[string]int{
		"/metrics": http.StatusOK, "/readyz": http.StatusOK, "/debug/pprof/heap": http.StatusTooManyRequests,
		"/debug/pprof/profile?seconds=301": http.StatusBadRequest,
		"/debug/pprof/profile?seconds=NaN": http.StatusBadRequest,
	} {
		if status, body := fetch(t, base+path); status != want {
			t.Errorf("%s: status %d, want %d: %.200s", path, status, want, body)
		}
	}
}

func TestDebugServerOff(t *testing.T) {
	t.Parallel()
	s, err := obs.NewDebugServer(t.Context(), obs.DebugConfig{Addr: obs.DebugOff})
	if err != nil || s.Addr() != "" {
		t.Fatalf("%q %v", s.Addr(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.Close()
}

func TestDebugAddresses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		addr   string
		public bool
		says   string // empty: the address is allowed
	}{
		{"127.0.0.1:0", false, ""},
		{"[::1]:7460", false, ""},
		{"localhost:7460", false, ""},
		{"off", false, ""},
		{"10.0.0.1:7460", true, ""},
		{":7460", true, ""},
		{"10.0.0.1:7460", false, "--debug-public"},
		{"0.0.0.0:7460", false, "--debug-public"},
		{":7460", false, "127.0.0.1:7460"},
		{"example.com:7460", false, "an IP address"},
		{"127.0.0.1", false, "port 0"},
		{"127.0.0.1:99999", false, "port 0"},
		{"", false, `"off"`},
	} {
		t.Run(fmt.Sprint(tt.addr, tt.public), func(t *testing.T) {
			var errs field.Errors
			obs.CheckDebugAddr(&errs, tt.addr, tt.public)
			err := errs.Err()
			if (err == nil) != (tt.says == "") {
				t.Fatalf("got %v", err)
			}
			if err != nil && (!strings.Contains(err.Error(), "debug-addr") || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%q does not say %q", err, tt.says)
			}
		})
	}
}
