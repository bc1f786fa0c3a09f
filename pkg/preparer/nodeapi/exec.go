package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// aliveEvery is how often the server sends frameAlive while a command runs. If this write fails, the client is gone.
const aliveEvery = 5 * time.Second

const (
	paramProcess  = "process"
	paramTail     = "tail"
	paramFollow   = "follow"
	paramPrevious = "previous"
	paramArg      = "arg"
	paramStdin    = "stdin"
)

func (s *Server) exec(w http.ResponseWriter, r *http.Request, id pod.Identity) {
	q := r.URL.Query()
	argv := q[paramArg]
	if len(argv) == 0 || argv[0] == "" {
		http.Error(w, "arg: missing; allowed: a program and its arguments", http.StatusBadRequest)
		return
	}
	if bad := slices.IndexFunc(argv, notUTF8); bad >= 0 {
		http.Error(w, fmt.Sprintf("arg: %q is not valid; allowed: UTF-8", argv[bad]), http.StatusBadRequest)
		return
	}
	command, err := s.pods.Command(id, q.Get(paramProcess), argv)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	log := s.cfg.Log.WithFields(obs.Fields{obs.Pod: id.String(), "command": argv[0], "remote": r.RemoteAddr})
	answer := http.NewResponseController(w)
	if err := answer.EnableFullDuplex(); err != nil && r.ProtoMajor < 2 {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	log.Info("command starts in a pod")
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusOK)
	out := &frames{to: w, flush: answer.Flush}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var stdin io.Reader
	if q.Get(paramStdin) != "" {
		stdin = r.Body
	}
	ended := s.run(ctx, cancel, command, stdin, out, func() {
		_ = answer.SetReadDeadline(time.Unix(1, 0)) // ends a read of stdin that waits for more input
	})
	log.WithField(obs.Reason, ended.String()).Info("command in a pod ended")
}

// notUTF8: such a text would change on its way, because the command is sent to its guard as JSON.
func notUTF8(text string) bool { return !utf8.ValidString(text) }

// run sends to the client how the command ended. noInput ends a read of stdin.
func (s *Server) run(ctx context.Context, cancel func(), command runtime.Command, stdin io.Reader, out *frames,
	noInput func(),
) Ended {
	var in, feed *os.File
	if stdin != nil {
		var err error
		if in, feed, err = os.Pipe(); err != nil {
			ended := Ended{Code: -1, Error: fmt.Sprintf("make a pipe: %v", err)}
			_ = out.end(ended) // fails if the client is gone
			return ended
		}
	}
	var input, alive sync.WaitGroup
	done := make(chan struct{}) // closed when no process of the command is left
	if stdin != nil {
		input.Go(func() {
			var gone *goneError
			if _, err := io.Copy(feed, reader{stdin}); errors.As(err, &gone) {
				cancel()
				<-done // because a lost input must not look like the end of the input
			}
			_ = feed.Close()
			// If the connection is closed with unread input, the client may lose the answer.
			_, _ = io.Copy(io.Discard, stdin)
		})
	}
	alive.Go(func() { keepAlive(out, done, cancel) })
	exit, err := command(ctx,
		runtime.Streams{Input: in, Output: stream{out, frameStdout, cancel}, Errors: stream{out, frameStderr, cancel}})
	_ = in.Close() // if in is nil, this returns an error
	close(done)
	alive.Wait()
	ended := Ended{Code: exit.Code, Signal: exit.Signal}
	if err != nil {
		ended = failed(err)
	}
	_ = out.end(ended) // fails if the client is gone
	late := time.AfterFunc(endLimit, noInput)
	defer late.Stop()
	input.Wait() // the client stops sending when it has the frameEnd
	return ended
}

// goneError means that a read of the request's body failed. A failed write to a program that does not read its input is
// another error.
type goneError struct{ error }

func (g *goneError) Unwrap() error { return g.error }

type reader struct{ r io.Reader }

func (r reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &goneError{err}
	}
	return n, err
}

func keepAlive(out *frames, done <-chan struct{}, cancel func()) {
	for {
		select {
		case <-done:
			return
		case <-time.After(aliveEvery):
			if out.write(frameAlive, nil) != nil {
				cancel()
				return
			}
		}
	}
}
