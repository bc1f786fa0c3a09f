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

// aliveEvery is how often a client is told that its command still runs, and found out that has gone.
const aliveEvery = 5 * time.Second

// Names of the parameters of requests.
const (
	paramProcess  = "process"
	paramTail     = "tail"
	paramFollow   = "follow"
	paramPrevious = "previous"
	paramArg      = "arg"
	paramStdin    = "stdin"
)

// exec runs a command in a pod. The body of the request is its stdin.
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
		_ = answer.SetReadDeadline(time.Unix(1, 0)) // whoever waits for more input is done
	})
	log.WithField(obs.Reason, ended.String()).Info("command in a pod ended")
}

// notUTF8 reports whether a text would arrive changed: a command gets to its guard as JSON.
func notUTF8(text string) bool { return !utf8.ValidString(text) }

// run runs the command with its streams connected, and tells the client how it ended. noInput ends a read of stdin.
func (s *Server) run(ctx context.Context, cancel func(), command runtime.Command, stdin io.Reader, out *frames, noInput func()) Ended {
	var in, feed *os.File
	if stdin != nil {
		var err error
		if in, feed, err = os.Pipe(); err != nil {
			ended := Ended{Code: -1, Error: fmt.Sprintf("make a pipe: %v", err)}
			_ = out.end(ended) // who has gone is not told
			return ended
		}
	}
	var input, alive sync.WaitGroup
	done := make(chan struct{}) // closed when nothing of the command is left
	if stdin != nil {
		input.Go(func() {
			var gone *goneError
			if _, err := io.Copy(feed, reader{stdin}); errors.As(err, &gone) {
				cancel()
				<-done // what is cut off must not look like the end
			}
			_ = feed.Close()
			_, _ = io.Copy(io.Discard, stdin) // closing a connection with unread input on it could cost the client the answer
		})
	}
	alive.Go(func() { keepAlive(out, done, cancel) })
	exit, err := command(ctx, runtime.Streams{Input: in, Output: stream{out, frameStdout, cancel}, Errors: stream{out, frameStderr, cancel}})
	_ = in.Close() // one that is nil says so
	close(done)
	alive.Wait()
	ended := Ended{Code: exit.Code, Signal: exit.Signal}
	if err != nil {
		ended = failed(err)
	}
	_ = out.end(ended) // who has gone is not told
	late := time.AfterFunc(endLimit, noInput)
	defer late.Stop()
	input.Wait() // a client that has been told sends no more
	return ended
}

// goneError is a read of the request's body that failed, as opposed to a write to a program that does not read.
type goneError struct{ error }

func (e *goneError) Unwrap() error { return e.error }

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
