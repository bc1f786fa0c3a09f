// Command hello is the sample program of the demo and the end-to-end tests: an HTTP server that says who it is.
//
// Its behaviour can be bent through the environment: HELLO_FAIL=1 makes it exit at once with status 3, HELLO_SICK=1 makes
// its health check fail, HELLO_VERSION is repeated in its answers.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if os.Getenv("HELLO_FAIL") != "" {
		fmt.Fprintln(os.Stderr, "failing as HELLO_FAIL says")
		os.Exit(3)
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if os.Getenv("HELLO_SICK") != "" {
			http.Error(w, "sick as HELLO_SICK says", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "hello from %s-%s-%s on %s, pid %d, version %s\n", os.Getenv("POD_ID"), os.Getenv("POD_ROLE"),
			os.Getenv("POD_INDEX"), os.Getenv("NODE_NAME"), os.Getpid(), os.Getenv("HELLO_VERSION"))
	})
	server := &http.Server{
		Addr:    net.JoinHostPort(os.Getenv("NODE_ADDRESS"), os.Getenv("PORT_HTTP")),
		Handler: mux, ReadHeaderTimeout: 5 * time.Second,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	fmt.Println("listening on", server.Addr)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	fmt.Println("stopping")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
