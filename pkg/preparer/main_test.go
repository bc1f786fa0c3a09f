package preparer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/oneshot"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/shim"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/tree"
)

// patience is long because the machine may be busy.
const patience = time.Minute

// The test binary runs as another program.
const (
	superviseArg = "supervise" // with a directory: the supervisor; at the end of stdin it kills all its processes
	victimArg    = "victim"    // with a file: a preparer that kills itself
	serveArg     = "serve"     // a pod that listens on its port and answers with its environment
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case oneshot.Arg:
			oneshot.Exec()
		case tree.Arg:
			tree.Exec()
		case superviseArg:
			exitOn(supervise(os.Args[2]))
		case victimArg:
			exitOn(runVictim(os.Args[2]))
		case serveArg:
			exitOn(serve())
		}
	}
	os.Exit(consultest.NoLeaks(consultest.Main(m)))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func supervise(dir string) error {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // waits for the end of stdin
		close(ended)
	}()
	return shim.Serve(context.Background(), shim.Config{
		Dir: dir, KillAll: ended, RestartDelay: 20 * time.Millisecond, MaxRestartDelay: 100 * time.Millisecond,
	})
}

func serve() error {
	listener, err := net.Listen("tcp", net.JoinHostPort(os.Getenv("NODE_ADDRESS"), os.Getenv("PORT_HTTP_MAIN")))
	if err != nil {
		return err
	}
	var asked atomic.Int64
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if ill := os.Getenv("ILL"); ill != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintf(w, "%s, asked %d times", ill, asked.Add(1))
			return
		}
		_ = json.NewEncoder(w).Encode(os.Environ()) // the client may have closed the connection
	}))
}
